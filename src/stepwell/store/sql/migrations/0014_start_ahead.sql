-- A start whose word goes ahead of the disk. The run is there for others at once, and a worker that heard of it claims it
-- while it is still being written; whoever called is answered when it is. The log is written in order: a claim that is
-- on the disk, before which no body begins, has the start that it is of there before it. After a crash in between there
-- is neither, and nobody was told that there was.
create procedure stepwell.start_ahead(
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
    insert into stepwell.runs (id, name, queue, priority, state, input, tags, retry, timeout, parent_id, root_id)
    select start_ahead.id, start_ahead.name, start_ahead.queue, start_ahead.priority, 'pending', start_ahead.input,
           start_ahead.tags, start_ahead.retry, start_ahead.timeout, start_ahead.parent_id, start_ahead.root_id
     where not exists (select from stepwell.repeated_starts s where s.run_id = start_ahead.id)
        on conflict (id) do nothing;
    if found then
        said := stepwell.say(channel, word);
    end if;
    commit;
    -- Something to wait for: the commit of what wrote nothing would not. It stands in the log behind the run.
    perform pg_logical_emit_message(true, 'stepwell', '');
end
$$;
