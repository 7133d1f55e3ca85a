-- notes: what running bodies write. Checkpoints are fenced by the claim, as every move is. Progress and log lines are
-- not, since nothing is decided by them: the attempt's number is enough to keep a late one from overwriting a newer
-- one.

-- name: save_checkpoint
-- Returns no row if the claim is lost, if the stored checkpoint was saved by newer code, or if it is not the one that
-- this attempt saved last (:after; null if it saved none): then this is an abandoned try that arrives too late. The run
-- stays locked meanwhile: whoever takes the claim away waits. Either this save is refused, or the next attempt sees it.
with held as materialized (
    select r.id, r.attempt
      from stepwell.runs r
     where r.id = :id::uuid
       and r.claim_id = :claim_id::uuid
       and r.state = 'running'
       for no key update
)
insert into stepwell.checkpoints as c (run_id, version, schema, attempt, state, saved_at)
select h.id, 1, :schema::int, h.attempt, :state::jsonb, stepwell.now()
  from held h
    on conflict (run_id) do update
   set version = c.version + 1,
       schema = excluded.schema,
       attempt = excluded.attempt,
       state = excluded.state,
       saved_at = excluded.saved_at
 where c.schema <= excluded.schema
   and case when :after::int is null then c.attempt < excluded.attempt
            else c.attempt = excluded.attempt and c.version = :after::int end
returning c.version;

-- name: load_checkpoint
-- No row: the claim is lost. A row of nulls: nothing was saved.
select c.version, c.schema, c.state
  from stepwell.runs r
  left join stepwell.checkpoints c on c.run_id = r.id
 where r.id = :id::uuid
   and r.claim_id = :claim_id::uuid
   and r.state = 'running';

-- name: forget_checkpoints
-- Deletes, of the next few checkpoints behind `last`, those whose run is not live. Returns how far it looked.
with seen as materialized (
    select c.run_id
      from stepwell.checkpoints c
     where c.run_id > :last::uuid
     order by c.run_id
     limit :limit
), gone as (
    delete from stepwell.checkpoints c
     where c.run_id = any(array(select s.run_id from seen s
                                 where (select r.id from stepwell.runs r where r.id = s.run_id) is null))
    returning c.run_id
)
select (select s.run_id from seen s order by s.run_id desc limit 1) as last, (select count(*) from gone) as gone;

-- name: note_steps
-- Stores the latest progress of each step. Rows are written in one order by everyone, so that two writers hardly ever
-- deadlock.
insert into stepwell.progress as p (run_id, step, attempt, done, total, detail, at)
select n.run_id, n.step, n.attempt, n.done, n.total, n.detail, stepwell.now() - n.age
  from unnest(:run_ids::uuid[], :steps::text[], :attempts::int[], :dones::float8[], :totals::float8[],
              :details::jsonb[], :ages::interval[]) as n (run_id, step, attempt, done, total, detail, age)
 order by n.run_id, n.step
    on conflict (run_id, step) do update
   set attempt = excluded.attempt,
       done = excluded.done,
       total = excluded.total,
       detail = excluded.detail,
       at = excluded.at
 where p.attempt <= excluded.attempt;

-- name: note_lines
-- Stores log lines. A line that exists already came with an earlier try; only a changed message, the count of omitted
-- lines, is updated.
insert into stepwell.run_logs as l (run_id, attempt, idx, at, level, logger, message)
select n.run_id, n.attempt, n.idx, stepwell.now() - n.age, n.level, n.logger, n.message
  from unnest(:run_ids::uuid[], :attempts::int[], :idxs::int[], :ages::interval[], :levels::text[],
              :loggers::text[], :messages::text[]) as n (run_id, attempt, idx, age, level, logger, message)
 order by n.run_id, n.attempt, n.idx
    on conflict (run_id, attempt, idx) do update
   set message = excluded.message
 where l.message <> excluded.message;

-- name: progress_of
select p.step, p.done, p.total, p.detail, p.at
  from stepwell.progress p
 where p.run_id = :id::uuid
 order by p.at, p.step;

-- name: logs_of
-- The last lines of a run, of one attempt or of all.
select l.*
  from (select l.attempt, l.idx, l.at, l.level, l.logger, l.message
          from stepwell.run_logs l
         where l.run_id = :id::uuid
           and (:attempt::int is null or l.attempt = :attempt::int)
         order by l.attempt desc, l.idx desc
         limit :limit) l
 order by l.attempt, l.idx;
