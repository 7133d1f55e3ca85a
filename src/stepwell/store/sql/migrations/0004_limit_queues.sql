-- Limits are counted by those who claim, from what is running: there is no counter that could drift, and a slot is
-- free when its run is no longer running, whoever saw to that. Queues without a limit have no part in it.
alter table stepwell.queues
    add column paused_by text,
    add column concurrency integer constraint concurrency_is_positive check (concurrency > 0),
    add column rate integer constraint rate_is_positive check (rate > 0),
    add column rate_period interval constraint rate_period_is_positive check (rate_period > interval '0'),
    add column per_key integer constraint per_key_is_positive check (per_key > 0),
    add column keyed boolean not null default false,
    add column claims bigint not null default 0,
    add column last_key text collate "C" not null default '',
    add column capped boolean not null generated always as (concurrency is not null or rate is not null) stored,
    add constraint rate_has_a_period check (num_nulls(rate, rate_period) in (0, 2));
comment on column stepwell.queues.claims is 'Counts the claims that had to respect a limit: who finds it changed since it looked has counted too soon.';
comment on column stepwell.queues.keyed is 'Whether runs with a limit key were ever started here.';
alter table stepwell.queues set (fillfactor = 50);

-- How many runs of a queue were claimed in each hundredth of its period.
create table stepwell.rate_uses (
    queue text collate "C" not null,
    part bigint not null,
    uses integer not null,
    primary key (queue, part)
);

create domain stepwell.limit_name as text collate "C"
    constraint limit_key_is_sane check (octet_length(value) between 1 and 200);
alter table stepwell.runs
    add column limit_key stepwell.limit_name,
    add column per_key integer,
    add column slot text collate "C",
    add column unique_key stepwell.run_key,
    add column debounce_key stepwell.run_key,
    add column deadline_at timestamptz,
    drop constraint row_fits_state,
    add constraint row_fits_state check (
        case when state = 'running'
             then num_nulls(claim_id, claimed_by, started_at) = 0 and due_at is null and attempt > 0
             else num_nonnulls(claim_id, claimed_by, started_at, slot) = 0
                  and (state = 'pending' and due_at is null or state = 'scheduled' and due_at is not null
                       or state in ('waiting', 'paused'))
        end
        and failures >= 0 and attempt >= failures
    );
comment on column stepwell.runs.slot is 'What its claim counts against, in a queue with a limit: its limit key, or nothing but the queue.';
alter table stepwell.finished_runs
    add column limit_key text collate "C",
    add column per_key integer;

drop index stepwell.runs_pending;
create index runs_pending on stepwell.runs (queue, priority, id) where state = 'pending' and limit_key is null;
create index runs_keyed on stepwell.runs (queue, limit_key, priority, id) where state = 'pending' and limit_key is not null;
create index runs_slots on stepwell.runs (queue, slot) where slot is not null;
create unique index runs_unique on stepwell.runs (unique_key) where unique_key is not null;
create unique index runs_debounced on stepwell.runs (debounce_key)
    where debounce_key is not null and state = 'scheduled' and attempt = 0;
create index runs_deadline on stepwell.runs (deadline_at) where deadline_at is not null;

-- The first id that could have been made at a time.
create function stepwell.id_at(at timestamptz) returns uuid
    language sql immutable parallel safe
as $$
    select rpad(lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0'), 32, '0')::uuid
$$;
