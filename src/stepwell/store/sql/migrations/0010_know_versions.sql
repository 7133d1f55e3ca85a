-- Versions of workflows: workers say which code they have; a run that is pinned to one is claimed by the name
-- `shop.checkout@1f2e3d4c5b6a`, which only workers with that code know. Everywhere else it is called what it is.
alter table stepwell.workers
    add column versions jsonb; -- of its workflows, by name; null: it is of a version that does not say

-- Who let a run rest, and since when.
alter table stepwell.runs
    add column paused_at timestamptz,
    add column paused_by text;

create function stepwell.plain_name(name text) returns text
    language sql immutable parallel safe
    as $$ select regexp_replace(name, '@[0-9a-f]{12}$', '') $$;

create or replace view stepwell.all_runs as
    select id, kind::text, (case kind when 'workflow' then stepwell.plain_name(name) else name end)::text as name,
           queue::text, priority::smallint, state, input::jsonb, null::jsonb as result,
           null::jsonb as error, key::text, tags::jsonb, attempt, failures, due_at, expires_at, claimed_by, started_at, created_at,
           null::timestamptz as finished_at, parent_id, root_id, retry_of, node, map_index
      from stepwell.runs
     union all
    select id, kind, case kind when 'workflow' then stepwell.plain_name(name) else name end,
           queue, priority, state, input, result, error,
           key, tags, attempt, failures, null, expires_at, claimed_by, started_at, created_at,
           finished_at, parent_id, root_id, retry_of, node, map_index
      from stepwell.finished_runs
     union all
    select id, kind, case kind when 'workflow' then stepwell.plain_name(name) else name end,
           queue, priority, state, input, result, error,
           key, tags, attempt, failures, null, expires_at, claimed_by, started_at, created_at,
           finished_at, parent_id, root_id, retry_of, node, map_index
      from stepwell.kept_runs;
