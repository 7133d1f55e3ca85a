-- A worker asks for the claims it knows of, by their ids. By worker alone, a range full of settled claims
-- would be read again every second for as long as an old snapshot keeps vacuum from them.
drop index stepwell.runs_claimed;
create index runs_claimed on stepwell.runs (claimed_by, claim_id) where claimed_by is not null;

-- Each statement that writes to a table reads the text of all its CHECKs again and evaluates them for every row,
-- whatever it changes: half of what it cost to start a run. What a value must be by itself is said by a type,
-- which a session reads once, and which is asked only where the value comes in.
create domain stepwell.kind_name as text collate "C"
    constraint kind_is_known check (value in ('task', 'workflow', 'graph'));
create domain stepwell.run_name as text collate "C"
    constraint name_is_sane check (octet_length(value) between 1 and 200);
create domain stepwell.queue_name as text collate "C"
    constraint queue_is_sane check (octet_length(value) between 1 and 100);
create domain stepwell.run_key as text collate "C"
    constraint key_is_sane check (octet_length(value) between 1 and 500);
create domain stepwell.urgency as smallint
    constraint priority_is_1_to_100 check (value between 1 and 100);
create domain stepwell.object_value as jsonb
    constraint json_is_object check (jsonb_typeof(value) = 'object');
create domain stepwell.time_limit as interval
    constraint timeout_is_positive check (value > interval '0');

drop view stepwell.all_runs;
drop view stepwell.all_attempts;

alter table stepwell.runs
    drop constraint kind_is_known,
    drop constraint name_is_sane,
    drop constraint queue_is_sane,
    drop constraint key_is_sane,
    drop constraint priority_is_1_to_100,
    drop constraint state_is_live,
    drop constraint input_is_object,
    drop constraint tags_are_object,
    drop constraint timeout_is_positive,
    drop constraint attempt_counts_failures,
    drop constraint claimed_iff_running,
    drop constraint running_is_attempted,
    drop constraint due_when_scheduled,
    drop constraint due_only_while_waiting;
alter table stepwell.runs
    alter kind type stepwell.kind_name,
    alter name type stepwell.run_name,
    alter queue type stepwell.queue_name,
    alter key type stepwell.run_key,
    alter priority type stepwell.urgency,
    alter input type stepwell.object_value,
    alter tags type stepwell.object_value,
    alter timeout type stepwell.time_limit;

-- What a row must be as a whole stays with the table: one CHECK, as short as it can be said.
alter table stepwell.runs add constraint row_fits_state check (
    case when state = 'running'
         then num_nulls(claim_id, claimed_by, started_at) = 0 and due_at is null and attempt > 0
         else num_nonnulls(claim_id, claimed_by, started_at) = 0
              and (state = 'pending' and due_at is null
                   or state = 'scheduled' and due_at is not null
                   or state in ('waiting', 'paused'))
    end
    and failures >= 0 and attempt >= failures
);

do $$
declare
    part regclass;
begin
    for part in select 'stepwell.finished_runs'::regclass
                 union all select inhrelid::regclass from pg_inherits
                            where inhparent = 'stepwell.finished_runs'::regclass
    loop
        -- A partition made like its parent keeps rules of its own when the parent's are dropped.
        execute format('alter table %s drop constraint if exists state_is_final, '
                       'drop constraint if exists result_iff_completed, '
                       'drop constraint if exists error_iff_failed, '
                       'drop constraint if exists final_attempt_is_whole', part);
    end loop;
end
$$;
alter table stepwell.finished_runs add constraint row_fits_state check (
    state in ('completed', 'failed', 'cancelled', 'expired', 'skipped')
    and (state = 'completed') = (result is not null)
    and (state = 'failed') = (error is not null)
    and num_nulls(claim_id, claimed_by, started_at) in (0, 3)
);

-- The base types in both: with two types for a column, the planner would sort all of history for a page of it.
create view stepwell.all_runs as
    select id, kind::text, name::text, queue::text, priority::smallint, state, input::jsonb, null::jsonb as result,
           null::jsonb as error, key::text, tags::jsonb, attempt, failures, due_at, expires_at, claimed_by, started_at, created_at,
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
