-- Workflows: a run of that kind moves turn by turn. What arrives for it between two turns, or during one, waits in
-- `arrivals` until whoever holds the turn writes it into the history: one writer, so that no event is missing
-- and none is numbered twice. All these columns are null for other runs, and cost them nothing.
alter table stepwell.runs
    add column recorded integer,     -- events in its history
    add column arrived integer,      -- arrivals, ever: who parks it compares, and misses none
    add column history_from integer, -- the event with which it began, or began anew
    add column waits_for jsonb,      -- for people
    add column blocked jsonb,        -- its code does not fit its history: how
    add column pausing boolean;      -- to be paused when its turn ends

create index runs_blocked on stepwell.runs (name) where blocked is not null;

create table stepwell.arrivals (
    run_id uuid not null,
    place  integer not null,
    type   text collate "C" not null,
    at     timestamptz not null,
    data   jsonb not null,

    primary key (run_id, place),
    constraint place_counts_from_one check (place > 0)
) with (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

-- What a workflow last showed. It stays as long as its run is kept.
create table stepwell.published (
    run_id uuid primary key,
    state  jsonb not null,
    at     timestamptz not null
) with (fillfactor = 70);
