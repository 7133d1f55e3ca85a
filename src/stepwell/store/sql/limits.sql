-- limits: claims that must first count what is running.

-- name: claim_limited_runs
-- moves: pending -> running
-- Claims from queues with a limit, and runs with a limit key. What is running there is counted in this statement, by
-- its snapshot. So each such claim locks the queue's row and increments its `claims`; a claim that finds them changed
-- since its snapshot leaves that queue out, and is repeated later. A queue that is known only by its limit keys gets
-- its row here, which is as good as a lock. Starts do not insert that row: they may be in a long transaction.
--
-- The keys of a queue are served in turns, beginning behind the last one served; the runs without a key have a turn
-- like a key's ('' means no key). A run that must be alone goes before the others of its turn. Then a tenth of the
-- places go to runs that waited long behind more urgent ones, as in claim_runs.
--
-- `again` is the number of seconds after which to claim again, if there is a reason to. `further` says that there is
-- room, and that there are more keys than were looked at: the next claim begins behind these.
with recursive keyed (queue) as (
    (select r.queue from stepwell.runs r where r.state = 'pending' and r.limit_key is not null order by r.queue limit 1)
     union all
    select (select r.queue from stepwell.runs r
             where r.state = 'pending' and r.limit_key is not null and r.queue > k.queue order by r.queue limit 1)
      from keyed k
     where k.queue is not null
), wanted as materialized (
    select w.name
      from (select q.name from stepwell.queues q where q.capped
             union select k.queue from keyed k where k.queue is not null) w
     where (:queues::text[] is null or w.name = any(:queues::text[]))
       and not exists (select from stepwell.queues q where q.name = w.name and q.paused_at is not null)
       and exists (select from stepwell.workers w where w.id = :worker::uuid and w.lease_until > stepwell.now()
                     and w.stopped_at is null)
), made as (
    insert into stepwell.queues (name, keyed)
    select w.name, true
      from wanted w
     where not exists (select from stepwell.queues q where q.name = w.name)
     order by w.name
        on conflict (name) do nothing
    returning *
), locked as materialized (
    select q.*,
           floor(extract(epoch from stepwell.now()) / extract(epoch from q.rate_period) * 100)::bigint as part
      from stepwell.queues q
     where q.name = any(array(select w.name from wanted w))
       and q.paused_at is null
       for no key update skip locked
), counted as materialized (
    -- A part that is far in the future is of another period, or of a clock that was set back.
    select l.*,
           l.concurrency - (select count(*) from stepwell.runs r where r.queue = l.name and r.slot is not null) as places,
           l.rate - (select coalesce(sum(u.uses), 0) from stepwell.rate_uses u
                      where u.queue = l.name and u.part between l.part - 100 and l.part + 100) as uses
      from (select * from locked union all select m.*, null from made m) l
     where l.claims = coalesce((select q.claims from stepwell.queues q where q.name = l.name), l.claims)
), room as materialized (
    select c.*, greatest(0, least(:limit, c.places, c.uses)) as size from counted c
), turn (queue, last_key, number, key, lap) as (
    select o.name, o.last_key, 1, (select r.limit_key from stepwell.runs r
                                    where r.state = 'pending' and r.limit_key is not null and r.queue = o.name
                                      and r.limit_key > o.last_key
                                    order by r.limit_key, r.priority, r.id limit 1)::text, 1
      from room o
     where o.size > 0
     union all
    select t.queue, t.last_key, t.number + 1,
           case when t.key is null then ''
                else (select r.limit_key from stepwell.runs r
                       where r.state = 'pending' and r.limit_key is not null and r.queue = t.queue
                         and r.limit_key > t.key
                       order by r.limit_key, r.priority, r.id limit 1)::text end,
           case when t.key is null then 2 else t.lap end
      from turn t
     where t.number < :keys::int
       and not (t.lap = 2 and (t.key is null or t.key >= t.last_key))
), allowed as materialized (
    select t.queue, t.number, t.key, a.size, floor(a.size / 10.0 + random())::int as aged
      from turn t
      join room o on o.name = t.queue
     cross join lateral (
           select least(o.size, case when t.key <> '' then coalesce(o.per_key, (
                      select f.per_key from stepwell.runs f
                       where f.state = 'pending' and f.limit_key is not null and f.queue = t.queue
                         and f.limit_key = t.key
                       order by f.limit_key, f.priority, f.id limit 1))
                  - (select count(*) from stepwell.runs h where h.queue = t.queue and h.slot = t.key) end) as size
           ) a
     where a.size > 0
       and (t.key <> '' or o.capped)
       and not (t.lap = 2 and t.key > t.last_key)
), lone as materialized (
    select r.id, r.queue, coalesce(r.limit_key, '') as key
      from stepwell.runs r
     where r.alone
       and :alone::boolean
       and r.state like 'pending' -- not `=`, which would offer the planner the index of all pending runs
       and (select a.size from allowed a where a.queue = r.queue and a.key = coalesce(r.limit_key, '')) > 0
       and r.name = any(:names::text[])
       and (r.expires_at is null or r.expires_at > stepwell.now())
     order by r.failures, r.id
     limit 1
       for update skip locked
), level (queue, key, aged, best, priority) as (
    select a.queue, a.key, a.aged, null::int, 0 from allowed a where a.aged > 0
     union all
    select l.queue, l.key, l.aged, coalesce(l.best, n.priority), n.priority
      from level l
     cross join lateral (
           select case when l.key = ''
                       then (select r.priority from stepwell.runs r
                              where r.state = 'pending' and r.limit_key is null and r.queue = l.queue
                                and r.priority > l.priority
                              order by r.priority, r.id limit 1)
                       else (select r.priority from stepwell.runs r
                              where r.state = 'pending' and r.limit_key is not null and r.queue = l.queue
                                and r.limit_key = l.key and r.priority > l.priority
                              order by r.limit_key, r.priority, r.id limit 1) end::int as priority
           ) n
     where n.priority is not null
), old as materialized (
    select l.queue, l.key, l.aged, p.id, row_number() over (partition by l.queue, l.key order by p.id) as place
      from level l
     cross join lateral (
           (select r.id
              from stepwell.runs r
             where r.state = 'pending'
               and r.limit_key is null
               and l.key = ''
               and r.queue = l.queue
               and r.priority = l.priority
               and r.id < stepwell.id_at(stepwell.now() - (l.priority - l.best) * :ageing::interval)
               and not r.alone
               and r.name = any(:names::text[])
               and (r.expires_at is null or r.expires_at > stepwell.now())
             order by r.priority, r.id
             limit l.aged)
            union all
           (select r.id
              from stepwell.runs r
             where r.state = 'pending'
               and r.limit_key is not null
               and r.queue = l.queue
               and r.limit_key = l.key
               and r.priority = l.priority
               and r.id < stepwell.id_at(stepwell.now() - (l.priority - l.best) * :ageing::interval)
               and not r.alone
               and r.name = any(:names::text[])
               and (r.expires_at is null or r.expires_at > stepwell.now())
             order by r.limit_key, r.priority, r.id
             limit l.aged)
           ) p
     where l.priority > l.best
), next as materialized (
    select l.queue, l.key, l.id, 0 as part, 0 as priority from lone l
     union all
    select o.queue, o.key, p.id, 1, 0
      from old o
     cross join lateral (select r.id from stepwell.runs r where r.id = o.id and r.state like 'pending'
                            for update skip locked) p
     where o.place <= o.aged
     union all
    select a.queue, a.key, p.id, 2, p.priority
      from allowed a
     cross join lateral (
           select r.id, r.priority
             from stepwell.runs r
            where r.state = 'pending'
              and r.limit_key is not null
              and r.queue = a.queue
              and r.limit_key = a.key
              and not r.alone
              and r.name = any(:names::text[])
              and (r.expires_at is null or r.expires_at > stepwell.now())
            order by r.limit_key, r.priority, r.id
            limit a.size
              for update skip locked
           ) p
     union all
    select a.queue, a.key, p.id, 2, p.priority
      from allowed a
     cross join lateral (
           select r.id, r.priority
             from stepwell.runs r
            where r.state = 'pending'
              and r.limit_key is null
              and a.key = ''
              and r.queue = a.queue
              and not r.alone
              and r.name = any(:names::text[])
              and (r.expires_at is null or r.expires_at > stepwell.now())
            order by r.priority, r.id
            limit a.size
              for update skip locked
           ) p
), found as materialized (
    select n.id, n.queue, n.key, n.part, a.number,
           row_number() over (partition by n.queue order by n.part > 0, n.place, a.number) as rank
      from (select n.*, row_number() over (partition by n.queue, n.key order by n.part, n.priority, n.id) as place
              from (select n.id, n.queue, n.key, min(n.part) as part, min(n.priority) as priority
                      from next n group by n.id, n.queue, n.key) n) n
      join allowed a on a.queue = n.queue and a.key = n.key
     where n.place <= a.size
), taken as materialized (
    select f.id, f.queue, f.key, f.part, f.number
      from found f
      join room o on o.name = f.queue
     where f.rank <= o.size
     order by f.rank, random()
     limit :limit
), claimed as (
    update stepwell.runs r
       set state = 'running',
           attempt = r.attempt + 1,
           claim_id = :claim_id::uuid,
           claimed_by = :worker::uuid,
           started_at = stepwell.now(),
           slot = coalesce(r.limit_key, '')
     where r.id = any(array(select t.id from taken t))
    returning r.id, r.name, r.queue, r.priority, r.attempt, r.failures, r.input, r.retry, r.timeout, r.key, r.tags,
              r.root_id, r.alone, true as limited, r.deadline_at - stepwell.now() as deadline, r.expires_at - stepwell.now() as expiry, r.node,
              case when r.kind = 'workflow' and r.parent_id is null and r.pausing is not true
                    and coalesce(r.recorded, 0) = 0 and coalesce(r.arrived, 0) = 0 then stepwell.now() end as fresh
), turned as materialized (
    -- If the turns ended at their bound, and all runs found were claimed, the next claim begins behind the last turn.
    select o.name, o.size, g.taken, g.served,
           (select last.key
              from turn last
             where last.queue = o.name
               and last.key is not null
               and g.taken = (select count(*) from found f where f.queue = o.name)
               and exists (select from turn t
                            where t.queue = o.name and t.number = :keys::int
                              and not (t.lap = 2 and (t.key is null or t.key >= t.last_key)))
             order by last.number desc
             limit 1) as reached
      from room o
     cross join lateral (select count(*) as taken,
                                (array_agg(t.key order by t.number desc) filter (where t.part > 0))[1] as served
                           from taken t where t.queue = o.name) g
), noted as (
    update stepwell.queues q
       set claims = q.claims + least(t.taken, 1),
           last_key = coalesce(t.reached, t.served, q.last_key)
      from turned t
     where q.name = t.name
       and (t.taken > 0 or t.reached is not null)
), used as (
    insert into stepwell.rate_uses as u (queue, part, uses)
    select o.name, o.part, count(*) from taken t join room o on o.name = t.queue
     where o.rate is not null
     group by o.name, o.part
        on conflict (queue, part) do update set uses = u.uses + excluded.uses
), gone as (
    delete from stepwell.rate_uses u using room o
     where u.queue = o.name and not u.part between o.part - 200 and o.part + 200
)
select (select min(w.wait)
          from (select 0.02 as wait
                 where (select count(*) from counted) < (select count(*) from wanted)
                 union all
                select greatest(0.001, (coalesce(min(u.part), o.part) + 101) * extract(epoch from o.rate_period) / 100
                                       - extract(epoch from stepwell.now()))
                  from room o
                  left join stepwell.rate_uses u on u.queue = o.name and u.part between o.part - 100 and o.part + 100
                 where o.uses <= (select count(*) from taken t where t.queue = o.name)
                 group by o.name, o.part, o.rate_period) w)::float8 as again,
       coalesce((select bool_or(t.reached is not null and t.taken < t.size) from turned t), false) as further,
       c.*
  from (select) one
  left join claimed c on true;
