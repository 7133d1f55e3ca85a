-- What is under way is told by its state: `claimed_by is not null` offered the index of all claims, and a session that had
-- planned it while there were none went along all of them to find one run.
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
 where state = 'running';
