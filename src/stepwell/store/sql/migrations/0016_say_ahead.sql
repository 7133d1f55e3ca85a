-- The word goes ahead of the run itself, and not only of the disk: it takes longer to reach a worker, and its claim to come
-- back, than the run takes to be there. Whoever is quicker than that finds nothing, and asks again a moment later. It is
-- said of a run that was there already, too: a word is a hint.
create or replace procedure stepwell.start_ahead(
    id uuid,
    name text,
    queue text,
    priority smallint,
    input jsonb,
    tags jsonb,
    retry jsonb,
    timeout interval,
    parent_id uuid,
    root_id uuid,
    channel text,
    word text,
    inout said boolean default false
)
    language plpgsql
as $$
#variable_conflict use_column
begin
    set local synchronous_commit = off;
    said := stepwell.say(channel, word);
    commit;
    set local synchronous_commit = off;
    insert into stepwell.runs (id, name, queue, priority, state, input, tags, retry, timeout, parent_id, root_id)
    select start_ahead.id, start_ahead.name, start_ahead.queue, start_ahead.priority, 'pending', start_ahead.input,
           start_ahead.tags, start_ahead.retry, start_ahead.timeout, start_ahead.parent_id, start_ahead.root_id
     where not exists (select from stepwell.repeated_starts s where s.run_id = start_ahead.id)
        on conflict (id) do nothing;
    commit;
    -- Something to wait for: the commit of what wrote nothing would not. It stands in the log behind the run.
    perform pg_logical_emit_message(true, 'stepwell', '');
end
$$;

-- The same for an outcome that someone waits for: the word goes ahead, and whoever heard it asks `awaited_result`, which
-- waits at the lock until the outcome is on the disk. So the way to there is gone while it is being written.
create procedure stepwell.complete_ahead(
    id uuid,
    claim_id uuid,
    result jsonb,
    channel text,
    word text,
    inout moved boolean default false,
    inout said boolean default false
)
    language plpgsql
as $$
#variable_conflict use_column
begin
    set local synchronous_commit = off;
    said := stepwell.say(channel, word);
    commit;
    perform pg_advisory_xact_lock(uuid_hash_extended(complete_ahead.id, 1400006));
    with done as (
        delete from stepwell.runs r
         where r.id = any(array[complete_ahead.id])
           and r.claim_id = complete_ahead.claim_id
           and r.state = 'running'
        returning r.*
    )
    insert into stepwell.finished_runs (
               id, kind, name, queue, priority, state, input, result, key, tags, retry, timeout, attempt,
               failures, expires_at, claim_id, claimed_by, started_at, created_at, finished_at, parent_id,
               root_id, retry_of, node, map_index, limit_key, per_key, keep
           )
    select id, kind, name, queue, priority, 'completed', input, complete_ahead.result, key, tags, retry, timeout, attempt,
           failures, expires_at, claim_id, claimed_by, started_at, created_at, stepwell.now(), parent_id,
           root_id, retry_of, node, map_index, limit_key, per_key, keep
      from done;
    moved := found;
end
$$;

-- One outcome, of a run that finished just now or is about to: not for long, since what it waits for may itself be waiting.
create function stepwell.awaited_result(run uuid)
    returns table (id uuid, name text, state text, result jsonb, error jsonb, attempt integer)
    language plpgsql
    set lock_timeout to '100ms'
as $$
#variable_conflict use_column
begin
    begin
        perform pg_advisory_xact_lock_shared(uuid_hash_extended(run, 1400006));
    exception when lock_not_available then
        null;
    end;
    return query
    select f.id, f.name, f.state, f.result, f.error, f.attempt
      from stepwell.finished_runs f
     where f.id = any(array[run])
       and f.finished_at between stepwell.now() - interval '1 hour' and stepwell.now() + interval '1 second';
end
$$;
