-- What a failed run starts, if it ends for good: the name, the queue and the other terms of its failure handler.
alter table stepwell.runs add column on_failure jsonb;
alter table stepwell.finished_runs add column on_failure jsonb;
alter table stepwell.kept_runs add column on_failure jsonb;

-- The finished row of a live run. Every statement that ends runs calls it, so that the columns stand here only; the
-- planner inlines it. A failed attempt that was claimed counts as a failure.
create function stepwell.ended(
    run stepwell.runs, state text, at timestamptz, result jsonb, error jsonb, usage jsonb
) returns stepwell.finished_runs
    language sql immutable parallel safe
    as $$
    select row(run.id, run.kind, run.name, run.queue, run.priority, state collate "C", run.input, result, error, run.key,
               run.tags, run.retry, run.timeout, run.attempt,
               run.failures + case when state = 'failed' and run.claim_id is not null then 1 else 0 end,
               run.expires_at, run.claim_id, run.claimed_by, run.started_at, run.created_at, at, run.parent_id,
               run.root_id, run.retry_of, run.node, run.map_index, run.limit_key, run.per_key, usage, run.keep,
               run.on_failure)::stepwell.finished_runs
$$;

-- The id of the failure handler of a run: of the moment at which that failed, and the same each time it is asked for.
create function stepwell.handler_id(run uuid, at timestamptz) returns uuid
    language sql immutable parallel safe
    as $$
    select (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0')
            || '7' || substr(hash, 1, 3) || '8' || substr(hash, 4, 15))::uuid
      from md5('on_failure ' || run::text) as hash
$$;
