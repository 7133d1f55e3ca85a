-- Finished runs that say how long they are kept, in one index: what is not kept is found by it after an hour, and what
-- is kept for ever when its day is dropped. Most runs say nothing.
create index finished_runs_keeping on stepwell.finished_runs (keep, id) where keep is not null;
drop index stepwell.finished_runs_brief;
create index kept_runs_failed on stepwell.kept_runs (id) where state = 'failed'; -- as finished_runs_failed

-- Drop one day of one table; whether it is gone. To drop it the parent is locked for a moment, and whoever writes
-- queues up behind that lock: if it cannot be had at once, not now. Nobody may write into that day from the moment on
-- when what is kept for ever is copied: a run whose transaction began on that day would go with it. Who reads is in
-- nobody's way until then. The day itself is only read where a queue keeps its runs for ever.
create or replace function stepwell.drop_partition(parent text, part text) returns boolean
    language plpgsql
    set lock_timeout = '50ms'
    as $$
declare
    columns text := (select string_agg(quote_ident(a.attname), ', ' order by a.attnum)
                       from pg_attribute a
                      where a.attrelid = 'stepwell.kept_runs'::regclass and a.attnum > 0 and not a.attisdropped);
    copy text := format('insert into stepwell.kept_runs (%s) select %s from stepwell.%I p', columns, columns, part);
    queues text[] := array(select q.name from stepwell.queues q where q.keep = 'forever');
begin
    if part !~ ('^' || parent || '_\d{8}$') or to_regclass(format('stepwell.%I', part)) is null then
        return false;
    end if;
    execute format('lock table stepwell.%I in share row exclusive mode', part);
    if parent = 'finished_runs' then
        execute copy || ' where p.keep = ''forever'' on conflict (id) do nothing';
    end if;
    if parent = 'finished_runs' and cardinality(queues) > 0 then
        execute copy || ' where p.keep is null and p.queue = any($1) on conflict (id) do nothing' using queues;
    end if;
    execute format('drop table stepwell.%I', part);
    return true;
exception when lock_not_available then
    return false;
end
$$;

comment on column stepwell.queues.keyed is 'Whether runs with a limit key were claimed here. Nobody asks: the pending ones stand in an index of their own.';
