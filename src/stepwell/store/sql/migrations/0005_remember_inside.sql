-- What running an attempt in a process of its own took, and how that process ended. Null for all others.
alter table stepwell.attempts add column usage jsonb;
alter table stepwell.finished_runs add column usage jsonb;

create or replace view stepwell.all_attempts as
    select run_id, attempt, outcome, error, claimed_by, started_at, ended_at, usage
      from stepwell.attempts
     union all
    select id, attempt, state, error, claimed_by, started_at, finished_at, usage
      from stepwell.finished_runs
     where claimed_by is not null
     union all
    select id, attempt, state, null, claimed_by, started_at, null, null
      from stepwell.runs
     where claimed_by is not null;

-- What a body saved for the next attempt at the same run. Gone some time after its run has finished.
create table stepwell.checkpoints (
    run_id   uuid primary key,
    version  integer not null,
    schema   integer not null,
    attempt  integer not null,
    state    jsonb not null,
    saved_at timestamptz not null,

    constraint version_counts_from_one check (version > 0)
) with (fillfactor = 50);
comment on column stepwell.checkpoints.version is 'Rises with every save.';
comment on column stepwell.checkpoints.schema is 'The shape of the state, by the number its code gives it: older code must leave it alone.';

-- How far each step of a run is, as its body last said. By the day the run was started, as its attempts are.
create table stepwell.progress (
    run_id  uuid not null,
    step    text collate "C" not null,
    attempt integer not null,
    done    double precision not null,
    total   double precision,
    detail  jsonb,
    at      timestamptz not null,

    primary key (run_id, step)
) partition by range (run_id);
create table stepwell.progress_default partition of stepwell.progress default;

-- What bodies wrote to their loggers: bounded for each attempt, by who writes it.
create table stepwell.run_logs (
    run_id  uuid not null,
    attempt integer not null,
    idx     integer not null,
    at      timestamptz not null,
    level   text collate "C" not null,
    logger  text collate "C" not null,
    message text not null,

    primary key (run_id, attempt, idx)
) partition by range (run_id);
create table stepwell.run_logs_default partition of stepwell.run_logs default;

create or replace function stepwell.make_partitions(ahead integer) returns integer
    language plpgsql
    as $$
declare
    today date := (stepwell.now() at time zone 'UTC')::date;
    made  integer := 0;
begin
    perform pg_advisory_xact_lock(hashtextextended('stepwell.make_partitions', 0));
    for step in 0 .. ahead loop
        made := made + stepwell.make_partition('finished_runs', today + step)::int
                     + stepwell.make_partition('attempts', today + step)::int
                     + stepwell.make_partition('events', today + step)::int
                     + stepwell.make_partition('progress', today + step)::int
                     + stepwell.make_partition('run_logs', today + step)::int;
    end loop;
    return made;
end
$$;

select stepwell.make_partitions(7);
