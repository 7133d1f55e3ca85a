-- turns: what a turn reads, and what it writes.

-- name: turns_held
-- Returns what is new for turns that were just claimed: a row for each arrival, or one row without any. It is one
-- snapshot, so `arrived` counts exactly the arrivals that are returned. The arrivals of each run are looked up: with a
-- join, a session that had planned it on empty tables could scan all arrivals.
select r.id, coalesce(r.recorded, 0) as recorded, coalesce(r.arrived, 0) as arrived, r.history_from, r.parent_id,
       coalesce(r.pausing, false) as pausing, stepwell.now() as now, a.place, a.type, a.at, a.data
  from stepwell.runs r
  left join lateral (select b.place, b.type, b.at, b.data
                       from stepwell.arrivals b
                      where b.run_id = r.id
                      order by b.place
                     offset 0) a on true
 where r.id = any(:ids::uuid[])
   and r.claim_id = (:claim_ids::uuid[])[width_bucket(r.id, :ids::uuid[])]
   and r.state = 'running'
 order by r.id, a.place;

-- name: history
-- A page of a history.
select e.idx, e.type, e.at, e.data
  from stepwell.events e
 where e.run_id = :id::uuid
   and e.idx > :after
 order by e.idx
 limit :limit;

-- name: advance_turns
-- moves: running -> waiting, pending, paused
-- Writes what a turn produced and moves its run: to waiting, or to pending if something arrived that the turn has not
-- seen. With 'stay' the turn goes on, with 'again' the run is pending, with 'block' it waits for other code. An id that
-- does not come back has lost its claim, and nothing of it was written. `arrived` is that of the locked row, not of the
-- snapshot: what arrives later finds the run waiting.
with held as materialized (
    select r.id
      from stepwell.runs r
     where r.id = any(:ids::uuid[])
       and r.claim_id = (:claim_ids::uuid[])[width_bucket(r.id, :ids::uuid[])]
       and r.state = 'running'
     order by r.id
       for update
), written as (
    insert into stepwell.events (run_id, idx, type, at, data)
    select (:ids::uuid[])[e.place], e.idx, e.type, timestamptz '2000-01-01Z' + e.at * interval '1 microsecond',
           :datas::jsonb -> (e.nr - 1)::integer
      from unnest(:places::text::integer[], :idxs::text::integer[], :types::text::text[], :ats::text::bigint[])
           with ordinality as e (place, idx, type, at, nr)
     where (:ids::uuid[])[e.place] = any(array(select h.id from held h))
), taken as (
    delete from stepwell.arrivals a
     where a.run_id = any(array(select h.id from held h))
       and a.place <= (:seen::integer[])[width_bucket(a.run_id, :ids::uuid[])]
), shown as (
    insert into stepwell.published (run_id, state, at)
    select p.run_id, p.state, stepwell.now()
      from unnest(:shown_runs::uuid[], :shown::jsonb[]) as p (run_id, state)
     where p.run_id = any(array(select h.id from held h))
        on conflict (run_id) do update set state = excluded.state, at = excluded.at
)
update stepwell.runs r
   set kind = 'workflow', -- a start by name alone could not know the kind
       arrived = coalesce(r.arrived, 0),
       failures = 0,
       alone = false,
       (state, recorded, history_from, waits_for, due_at, blocked, pausing, claim_id, claimed_by, started_at, slot) = (
           select m.state, greatest(r.recorded, (:recorded::integer[])[m.place]), (:froms::integer[])[m.place],
                  (:waits::jsonb[])[m.place],
                  case when m.state in ('waiting', 'paused') then (:dues::timestamptz[])[m.place] end,
                  case when (:blocks::jsonb[])[m.place] is not null
                       then (:blocks::jsonb[])[m.place] || jsonb_build_object('worker', r.claimed_by, 'at', stepwell.now()) end,
                  case when m.state = 'paused' then null else r.pausing end,
                  case when m.state = 'running' then r.claim_id end,
                  case when m.state = 'running' then r.claimed_by end,
                  case when m.state = 'running' then r.started_at end,
                  case when m.state = 'running' then r.slot end
             from (select p.place,
                          case when (:tos::text[])[p.place] = 'stay' then 'running'
                               when r.pausing then 'paused'
                               when (:tos::text[])[p.place] = 'again' then 'pending'
                               when (:tos::text[])[p.place] = 'block' then 'waiting'
                               when r.arrived > (:seen::integer[])[p.place] then 'pending'
                               else 'waiting' end as state
                     from (select width_bucket(r.id, :ids::uuid[]) as place) p) m)
 where r.id = any(array(select h.id from held h))
returning r.id, r.state, r.arrived, r.queue, coalesce(r.pausing, false) as pausing;

-- name: record_turns
-- Writes events of turns that go on; most writes are of this kind: a step has ended. It is advance_turns without taking
-- arrivals. Parameters are texts, which the driver sends as they are: it checks each element of an array. The rows are
-- locked in the order of their ids, by the index that finds them. One row is returned: `moved` is null if all were
-- moved, else it has those that were; `heard` has the turns for which something arrived, `pausing` those that are to
-- pause.
with given as materialized (
    select :ids::text::uuid[] as ids, :claim_ids::text::uuid[] as claim_ids,
           :recorded::text::integer[] as recorded, :seen::text::integer[] as seen
), moved as (
    update stepwell.runs r
       set kind = 'workflow',
           arrived = coalesce(r.arrived, 0),
           recorded = greatest(r.recorded, g.recorded[width_bucket(r.id, g.ids)]),
           failures = 0,
           alone = false
      from given g
     where r.id = any(g.ids)
       and r.claim_id = g.claim_ids[width_bucket(r.id, g.ids)]
       and r.state = 'running'
    returning r.id, r.arrived, r.pausing, r.arrived > g.seen[width_bucket(r.id, g.ids)] as heard
), written as (
    insert into stepwell.events (run_id, idx, type, at, data)
    select g.ids[e.place], e.idx, e.type, timestamptz '2000-01-01Z' + e.at * interval '1 microsecond',
           :datas::jsonb -> (e.nr - 1)::integer
      from given g,
           unnest(:places::text::integer[], :idxs::text::integer[], :types::text::text[], :ats::text::bigint[])
           with ordinality as e (place, idx, type, at, nr)
     where (select count(*) from moved) = cardinality(g.ids)
        or g.ids[e.place] = any(array(select m.id from moved m))
)
select case when (select count(*) from moved) < cardinality(g.ids)
            then array(select m.id from moved m) end as moved,
       array(select m.id from moved m where m.heard) as heard,
       array(select m.id from moved m where m.pausing) as pausing
  from given g;

-- name: record_turn
-- Writes one event of one turn that goes on: record_turns for a workflow that is alone on its worker, one step after
-- another. No row: its claim was lost, and nothing was written.
with moved as (
    update stepwell.runs r
       set kind = 'workflow',
           arrived = coalesce(r.arrived, 0),
           recorded = greatest(r.recorded, :idx::integer),
           failures = 0,
           alone = false
     where r.id = :id::uuid
       and r.claim_id = :claim_id::uuid
       and r.state = 'running'
    returning r.id, r.arrived, r.pausing
), written as (
    insert into stepwell.events (run_id, idx, type, at, data)
    select m.id, :idx::integer, :type::text, :at::timestamptz, :data::jsonb
      from moved m
)
select m.arrived, coalesce(m.pausing, false) as pausing
  from moved m;
