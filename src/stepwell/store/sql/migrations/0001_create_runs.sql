-- The tables of a run's life. A live run is a row of `runs`; when it finishes, the row moves to
-- `finished_runs`, so that the table every claim reads stays small for ever.
--
-- Text that is compared is `collate "C"`: the same order on every server, and the fastest one.
-- States are text with a CHECK rather than an enum: a new state is then an ordinary migration,
-- and no driver has to look the type up on each connection.

-- The only clock. Deadlines are set by it and compared with it, never with a worker's clock;
-- tests replace this function to shift time for every session at once.
create function stepwell.now() returns timestamptz
    language sql stable parallel safe
    as 'select pg_catalog.now()';

create table stepwell.runs (
    id         uuid primary key,
    kind       text collate "C" not null default 'task',
    name       text collate "C" not null,
    queue      text collate "C" not null,
    priority   smallint not null,
    state      text collate "C" not null,
    input      jsonb not null,
    key        text collate "C",
    tags       jsonb,
    retry      jsonb not null,
    timeout    interval,
    attempt    integer not null default 0,
    failures   integer not null default 0,
    alone      boolean not null default false,
    due_at     timestamptz,
    expires_at timestamptz,
    claim_id   uuid,
    claimed_by uuid,
    started_at timestamptz,
    created_at timestamptz not null default stepwell.now(),
    parent_id  uuid,
    root_id    uuid,
    retry_of   uuid,
    node       text collate "C",
    map_index  integer,

    constraint kind_is_known check (kind in ('task', 'workflow', 'graph')),
    constraint name_is_sane check (octet_length(name) between 1 and 200),
    constraint queue_is_sane check (octet_length(queue) between 1 and 100),
    constraint key_is_sane check (octet_length(key) between 1 and 500),
    constraint priority_is_1_to_100 check (priority between 1 and 100),
    constraint state_is_live check (state in ('scheduled', 'waiting', 'pending', 'running', 'paused')),
    constraint input_is_object check (jsonb_typeof(input) = 'object'),
    constraint tags_are_object check (jsonb_typeof(tags) = 'object'),
    constraint timeout_is_positive check (timeout > interval '0'),
    constraint attempt_counts_failures check (failures >= 0 and attempt >= failures),
    constraint claimed_iff_running check (
        (state = 'running') = (claim_id is not null)
        and (state = 'running') = (claimed_by is not null)
        and (state = 'running') = (started_at is not null)
    ),
    constraint running_is_attempted check (state <> 'running' or attempt > 0),
    constraint due_when_scheduled check (state <> 'scheduled' or due_at is not null),
    constraint due_only_while_waiting check (due_at is null or state in ('scheduled', 'waiting', 'paused'))
) with (
    -- A queue's table is mostly dead rows minutes after a burst: vacuum by count, not by share,
    -- and without resting.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 5000
);

-- One index for each question that is asked of live runs, and no more: every one is paid for at each move.
create index runs_pending on stepwell.runs (queue, priority, id) where state = 'pending';
create index runs_due on stepwell.runs (due_at) where due_at is not null;
create index runs_expiring on stepwell.runs (expires_at) where expires_at is not null;
create index runs_claimed on stepwell.runs (claimed_by) where claimed_by is not null;
create index runs_alone on stepwell.runs (failures, id) where alone;

create table stepwell.finished_runs (
    id          uuid not null,
    kind        text collate "C" not null,
    name        text collate "C" not null,
    queue       text collate "C" not null,
    priority    smallint not null,
    state       text collate "C" not null,
    input       jsonb not null,
    result      jsonb,
    error       jsonb,
    key         text collate "C",
    tags        jsonb,
    retry       jsonb not null,
    timeout     interval,
    attempt     integer not null,
    failures    integer not null,
    expires_at  timestamptz,
    claim_id    uuid,
    claimed_by  uuid,
    started_at  timestamptz,
    created_at  timestamptz not null,
    finished_at timestamptz not null,
    parent_id   uuid,
    root_id     uuid,
    retry_of    uuid,
    node        text collate "C",
    map_index   integer,

    primary key (id, finished_at),
    constraint state_is_final check (state in ('completed', 'failed', 'cancelled', 'expired', 'skipped')),
    constraint result_iff_completed check ((state = 'completed') = (result is not null)),
    constraint error_iff_failed check ((state = 'failed') = (error is not null)),
    constraint final_attempt_is_whole check (
        (claim_id is null) = (claimed_by is null) and (claim_id is null) = (started_at is null)
    )
) partition by range (finished_at);

create table stepwell.finished_runs_default partition of stepwell.finished_runs default;
create index finished_runs_failed on stepwell.finished_runs (id) where state = 'failed';

-- An attempt that ended without finishing its run. The last one is on the run itself.
create table stepwell.attempts (
    run_id     uuid not null,
    attempt    integer not null,
    outcome    text collate "C" not null,
    error      jsonb,
    claim_id   uuid not null,
    claimed_by uuid not null,
    started_at timestamptz not null,
    ended_at   timestamptz not null,

    primary key (run_id, attempt),
    constraint outcome_is_known check (outcome in ('failed', 'snoozed', 'released')),
    constraint error_iff_failed check ((outcome = 'failed') = (error is not null))
) partition by range (run_id);

create table stepwell.attempts_default partition of stepwell.attempts default;

-- The history of workflows and graphs: append-only, gap-free per run.
create table stepwell.events (
    run_id uuid not null,
    idx    integer not null,
    type   text collate "C" not null,
    at     timestamptz not null,
    data   jsonb not null,

    primary key (run_id, idx),
    constraint idx_counts_from_one check (idx > 0)
) partition by range (run_id);

create table stepwell.events_default partition of stepwell.events default;
create index events_at on stepwell.events using brin (at);

-- A user's idempotency key: reserved in the transaction that starts its run.
create table stepwell.keys (
    key        text collate "C" primary key,
    digest     bytea not null,
    run_id     uuid not null,
    expires_at timestamptz not null,

    constraint key_is_sane check (octet_length(key) between 1 and 500)
);

create index keys_expiring on stepwell.keys (expires_at);

-- A start that was repeated because its answer was lost. Should its first words arrive after all, later
-- than the run has finished, they find this and start nothing. Nearly always empty.
create table stepwell.repeated_starts (
    run_id uuid primary key,
    at     timestamptz not null default stepwell.now()
);

-- `lease_until` is in no index, and pages are kept half empty, so that heartbeats stay HOT updates.
create table stepwell.workers (
    id          uuid primary key,
    name        text not null,
    host        text not null,
    pid         integer not null,
    version     text not null,
    queues      text[],
    slots       integer not null,
    started_at  timestamptz not null default stepwell.now(),
    lease_until timestamptz not null,
    stopped_at  timestamptz,

    constraint slots_are_positive check (slots > 0)
) with (fillfactor = 50);

-- A queue needs a row only when it is not plain.
create table stepwell.queues (
    name      text collate "C" primary key,
    paused_at timestamptz,

    constraint name_is_sane check (octet_length(name) between 1 and 100)
);

-- Who runs a service. Leadership only saves work: every service is safe to run everywhere at once.
create table stepwell.leaders (
    service   text collate "C" primary key,
    worker_id uuid not null,
    term      bigint not null,
    until     timestamptz not null
) with (fillfactor = 50);

create view stepwell.all_runs as
    select id, kind, name, queue, priority, state, input, null::jsonb as result, null::jsonb as error,
           key, tags, attempt, failures, due_at, expires_at, claimed_by, started_at, created_at,
           null::timestamptz as finished_at, parent_id, root_id, retry_of, node, map_index
      from stepwell.runs
     union all
    select id, kind, name, queue, priority, state, input, result, error,
           key, tags, attempt, failures, null, expires_at, claimed_by, started_at, created_at,
           finished_at, parent_id, root_id, retry_of, node, map_index
      from stepwell.finished_runs;

create view stepwell.all_attempts as
    select run_id, attempt, outcome, error, claimed_by, started_at, ended_at
      from stepwell.attempts
     union all
    select id, attempt, state, error, claimed_by, started_at, finished_at
      from stepwell.finished_runs
     where claimed_by is not null
     union all
    select id, attempt, state, null, claimed_by, started_at, null
      from stepwell.runs
     where claimed_by is not null;

-- What happened does not change. Statement triggers: no row pays for them.
create function stepwell.refuse_change() returns trigger
    language plpgsql
    as $$
begin
    raise exception '% is a record of what happened: its rows are never changed', tg_table_name
        using errcode = 'integrity_constraint_violation';
end
$$;

create trigger finished_runs_never_change before update on stepwell.finished_runs
    for each statement execute function stepwell.refuse_change();
create trigger attempts_never_change before update or delete on stepwell.attempts
    for each statement execute function stepwell.refuse_change();
create trigger events_never_change before update or delete on stepwell.events
    for each statement execute function stepwell.refuse_change();

-- One day's partition of one table. A day whose rows already stand in the default partition stays there.
-- To attach it the default partition is locked for a moment, and whoever reads queues up behind that lock:
-- if it cannot be had at once, not now. There are days left to try again.
create function stepwell.make_partition(parent text, day date) returns boolean
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
    execute format('create table stepwell.%I (like stepwell.%I including defaults including constraints)',
                   part, parent);
    execute format('alter table stepwell.%I attach partition stepwell.%I for values from (%L) to (%L)',
                   parent, part, low, high);
    return true;
exception when check_violation or lock_not_available then
    return false;
end
$$;

-- The smallest UUIDv7 of a day.
create function stepwell.first_id(day date) returns uuid
    language sql immutable
    as $$
    select rpad(lpad(to_hex((extract(epoch from day::timestamp at time zone 'UTC') * 1000)::bigint), 12, '0'),
                32, '0')::uuid
$$;

-- Every partition from today to `ahead` days on; how many were missing. The lock keeps two callers apart.
create function stepwell.make_partitions(ahead integer) returns integer
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
                     + stepwell.make_partition('events', today + step)::int;
    end loop;
    return made;
end
$$;

select stepwell.make_partitions(7);
