-- limits: claims that must count what is running first.

-- name: claim_limited_runs
-- moves: pending -> running
-- From queues with a limit, and of runs with a limit key. What is running there is counted in this statement, by its
-- snapshot; so each such claim locks the queue and counts up its `claims`, and whoever finds them changed since its
-- snapshot counts again, later. The keys of a queue come in turns, beginning behind the last that was served.
-- `again` is in how many seconds there is reason to ask again, if there is any.
with recursive locked as materialized (
    select q.name, q.claims, q.concurrency, q.rate, q.rate_period, q.per_key, q.last_key, q.capped,
           floor(extract(epoch from stepwell.now()) / extract(epoch from q.rate_period) * 100)::bigint as part
      from stepwell.queues q
     where (q.capped or q.keyed)
       and q.paused_at is null
       and (:queues::text[] is null or q.name = any(:queues::text[]))
       and exists (select from stepwell.workers w where w.id = :worker::uuid and w.lease_until > stepwell.now()
                     and w.stopped_at is null)
       for no key update skip locked
), counted as materialized (
    select l.*,
           l.concurrency - (select count(*) from stepwell.runs r where r.queue = l.name and r.slot is not null) as places,
           l.rate - (select coalesce(sum(u.uses), 0) from stepwell.rate_uses u
                      where u.queue = l.name and u.part >= l.part - 100) as uses
      from locked l
     where l.claims = (select q.claims from stepwell.queues q where q.name = l.name)
), room as materialized (
    select c.*, greatest(0, least(:limit, c.places, c.uses)) as size from counted c
), lone as materialized (
    select r.id
      from stepwell.runs r
     where r.alone
       and :alone::boolean
       and r.state like 'pending' -- not `=`, which would offer the index of all that is pending
       and r.queue = any(array(select o.name from room o where o.size > 0 and (o.capped or r.limit_key is not null)))
       and r.name = any(:names::text[])
     order by r.failures, r.id
     limit 1
), turn (queue, last_key, number, key, lap) as (
    select o.name, o.last_key, 1, (select r.limit_key from stepwell.runs r
                                    where r.state = 'pending' and r.limit_key is not null and r.queue = o.name
                                      and r.limit_key > o.last_key
                                    order by r.limit_key, r.priority, r.id limit 1), 1
      from room o
     where o.size > 0
     union all
    select t.queue, t.last_key, t.number + 1,
           case when t.key is not null
                then (select r.limit_key from stepwell.runs r
                       where r.state = 'pending' and r.limit_key is not null and r.queue = t.queue
                         and r.limit_key > t.key
                       order by r.limit_key, r.priority, r.id limit 1)
                else (select r.limit_key from stepwell.runs r
                       where r.state = 'pending' and r.limit_key is not null and r.queue = t.queue
                       order by r.limit_key, r.priority, r.id limit 1) end,
           case when t.key is null then 2 else t.lap end
      from turn t
     where t.number < :keys::int
       and not (t.lap = 2 and (t.key is null or t.key > t.last_key))
), next as materialized (
    select p.id, t.queue, t.number, t.key,
           row_number() over (partition by t.queue, t.key order by p.priority, p.id) as place
      from turn t
      join room o on o.name = t.queue
     cross join lateral (
           select r.id, r.priority
             from stepwell.runs r
            where r.state = 'pending'
              and r.limit_key is not null
              and r.queue = t.queue
              and r.limit_key = t.key
              and (not r.alone or r.id = (select l.id from lone l))
              and r.name = any(:names::text[])
              and (r.expires_at is null or r.expires_at > stepwell.now())
            order by r.limit_key, r.priority, r.id
            limit greatest(0, least(o.size, coalesce(o.per_key, (
                      select f.per_key from stepwell.runs f
                       where f.state = 'pending' and f.limit_key is not null and f.queue = t.queue
                         and f.limit_key = t.key
                       order by f.limit_key, f.priority, f.id limit 1))
                  - (select count(*) from stepwell.runs h where h.queue = t.queue and h.slot = t.key)))
              for update skip locked
           ) p
     where t.key is not null
       and not (t.lap = 2 and t.key > t.last_key)
     union all
    select p.id, o.name, 0, null, row_number() over (partition by o.name order by p.priority, p.id)
      from room o
     cross join lateral (
           select r.id, r.priority
             from stepwell.runs r
            where r.state = 'pending'
              and r.limit_key is null
              and r.queue = o.name
              and o.capped
              and (not r.alone or r.id = (select l.id from lone l))
              and r.name = any(:names::text[])
              and (r.expires_at is null or r.expires_at > stepwell.now())
            order by r.priority, r.id
            limit o.size
              for update skip locked
           ) p
), taken as materialized (
    select n.id, n.queue, n.key, n.number
      from (select n.*, row_number() over (partition by n.queue order by n.place, n.number) as rank from next n) n
      join room o on o.name = n.queue
     where n.rank <= o.size
     order by n.rank
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
              r.root_id, r.alone, true as limited, r.deadline_at - stepwell.now() as deadline, r.expires_at - stepwell.now() as expiry
), noted as (
    update stepwell.queues q
       set claims = q.claims + 1,
           last_key = coalesce(t.last_key, q.last_key)
      from (select t.queue, (array_agg(t.key order by t.number desc) filter (where t.key is not null))[1] as last_key
              from taken t group by t.queue) t
     where q.name = t.queue
), used as (
    insert into stepwell.rate_uses as u (queue, part, uses)
    select o.name, o.part, count(*) from taken t join room o on o.name = t.queue
     where o.rate is not null
     group by o.name, o.part
        on conflict (queue, part) do update set uses = u.uses + excluded.uses
), gone as (
    delete from stepwell.rate_uses u using room o
     where u.queue = o.name and u.part < o.part - 200
)
select (select min(w.wait)
          from (select 0.02 as wait
                 where (select count(*) from counted) < (select count(*) from stepwell.queues q
                                                          where (q.capped or q.keyed) and q.paused_at is null
                                                            and (:queues::text[] is null
                                                                 or q.name = any(:queues::text[])))
                 union all
                select greatest(0.001, (coalesce(min(u.part), o.part) + 101) * extract(epoch from o.rate_period) / 100
                                       - extract(epoch from stepwell.now()))
                  from room o
                  left join stepwell.rate_uses u on u.queue = o.name and u.part >= o.part - 100
                 where o.uses <= (select count(*) from taken t where t.queue = o.name)
                 group by o.name, o.part, o.rate_period) w)::float8 as again,
       c.*
  from (select) one
  left join claimed c on true;
