-- How long a finished run is kept: as long as the rest, not at all, or for ever. What its queue says holds where the
-- run itself says nothing.
create domain stepwell.keeping as text collate "C"
    constraint keeping_is_known check (value in ('none', 'forever'));
alter table stepwell.queues add column keep stepwell.keeping;
alter table stepwell.runs add column keep stepwell.keeping;
alter table stepwell.finished_runs add column keep text collate "C";
create index finished_runs_brief on stepwell.finished_runs (id) where keep = 'none';

-- Those that are kept for ever come here when their day goes.
create table stepwell.kept_runs (like stepwell.finished_runs including defaults including constraints);
alter table stepwell.kept_runs add primary key (id);
create trigger kept_runs_never_change before update on stepwell.kept_runs
    for each statement execute function stepwell.refuse_change();

-- Drop one day of one table; whether it is gone. To drop it the parent is locked for a moment, and whoever writes
-- queues up behind that lock: if it cannot be had at once, not now.
create function stepwell.drop_partition(parent text, part text) returns boolean
    language plpgsql
    set lock_timeout = '50ms'
    as $$
declare
    columns text := (select string_agg(quote_ident(a.attname), ', ' order by a.attnum)
                       from pg_attribute a
                      where a.attrelid = 'stepwell.kept_runs'::regclass and a.attnum > 0 and not a.attisdropped);
begin
    if part !~ ('^' || parent || '_\d{8}$') or to_regclass(format('stepwell.%I', part)) is null then
        return false;
    end if;
    if parent = 'finished_runs' then
        execute format('insert into stepwell.kept_runs (%s) select %s from stepwell.%I p '
                       'where coalesce(p.keep, (select q.keep from stepwell.queues q where q.name = p.queue)) = %L '
                       'on conflict (id) do nothing', columns, columns, part, 'forever');
    end if;
    execute format('drop table stepwell.%I', part);
    return true;
exception when lock_not_available then
    return false;
end
$$;

drop view stepwell.all_runs;
create view stepwell.all_runs as
    select id, kind::text, name::text, queue::text, priority::smallint, state, input::jsonb, null::jsonb as result,
           null::jsonb as error, key::text, tags::jsonb, attempt, failures, due_at, expires_at, claimed_by, started_at, created_at,
           null::timestamptz as finished_at, parent_id, root_id, retry_of, node, map_index
      from stepwell.runs
     union all
    select id, kind, name, queue, priority, state, input, result, error,
           key, tags, attempt, failures, null, expires_at, claimed_by, started_at, created_at,
           finished_at, parent_id, root_id, retry_of, node, map_index
      from stepwell.finished_runs
     union all
    select id, kind, name, queue, priority, state, input, result, error,
           key, tags, attempt, failures, null, expires_at, claimed_by, started_at, created_at,
           finished_at, parent_id, root_id, retry_of, node, map_index
      from stepwell.kept_runs;

create or replace view stepwell.all_attempts as
    select run_id, attempt, outcome, error, claimed_by, started_at, ended_at, usage
      from stepwell.attempts
     union all
    select id, attempt, state, error, claimed_by, started_at, finished_at, usage
      from stepwell.finished_runs
     where claimed_by is not null
     union all
    select id, attempt, state, error, claimed_by, started_at, finished_at, usage
      from stepwell.kept_runs
     where claimed_by is not null
     union all
    select id, attempt, state, null, claimed_by, started_at, null, null
      from stepwell.runs
     where claimed_by is not null;
