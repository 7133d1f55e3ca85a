-- One day's partition of one table: whether it was made. A writer that has looked up the place of its row, and waits for the
-- default partition while a day is attached beside it, would fail: its row belongs to the new day by then. So no writer may
-- be under way in the parent. If that lock, or the one on the default partition, cannot be had within 100 ms, the day is left
-- for later: whoever writes waits behind us meanwhile. For the same reason each day is made in a transaction of its own. A day
-- whose rows already stand in the default partition stays there.
create or replace function stepwell.make_partition(parent text, day date) returns boolean
    language plpgsql
    set lock_timeout = '100ms'
    as $$
declare
    part  text := parent || to_char(day, '_YYYYMMDD');
    low   text := case parent when 'finished_runs' then (day::timestamp at time zone 'UTC')::text
                  else stepwell.first_id(day)::text end;
    high  text := case parent when 'finished_runs' then ((day + 1)::timestamp at time zone 'UTC')::text
                  else stepwell.first_id(day + 1)::text end;
begin
    if to_regclass(format('stepwell.%I', part)) is not null then
        return false;
    end if;
    execute format('lock table only stepwell.%I in share row exclusive mode', parent);
    if to_regclass(format('stepwell.%I', part)) is not null then
        return false; -- another made it while this one waited
    end if;
    execute format('create table stepwell.%I (like stepwell.%I including defaults including constraints)',
                   part, parent);
    execute format('alter table stepwell.%I attach partition stepwell.%I for values from (%L) to (%L)',
                   parent, part, low, high);
    return true;
exception when check_violation or lock_not_available then
    return false;
end
$$;

-- The days from today to `ahead` on that have no partition, and can have one: no row of theirs is in the default partition.
-- What is found here is found without a lock that anybody waits for. `make_partitions` stays for workers of an older version.
create function stepwell.missing_partitions(ahead integer) returns table (parent text, day date)
    language plpgsql
    as $$
declare
    today  date := (stepwell.now() at time zone 'UTC')::date;
    strays boolean;
begin
    for step in 0 .. ahead loop
        day := today + step;
        foreach parent in array array['finished_runs', 'attempts', 'events', 'progress', 'run_logs'] loop
            continue when to_regclass(format('stepwell.%I', parent || to_char(day, '_YYYYMMDD'))) is not null;
            if parent = 'finished_runs' then
                execute format('select exists (select from stepwell.%I where finished_at >= $1 and finished_at < $2)',
                               parent || '_default')
                   into strays using day::timestamp at time zone 'UTC', (day + 1)::timestamp at time zone 'UTC';
            else
                execute format('select exists (select from stepwell.%I where run_id >= $1 and run_id < $2)',
                               parent || '_default')
                   into strays using stepwell.first_id(day), stepwell.first_id(day + 1);
            end if;
            if not strays then
                return next;
            end if;
        end loop;
    end loop;
end
$$;
