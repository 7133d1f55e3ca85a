-- retention: finished runs leave, by whole days where they can.

-- name: may_change_tables
-- Whether this role can make and drop the tables of days: only their owner can, or a member of that role.
select pg_has_role(c.relowner, 'usage') and has_schema_privilege(c.relnamespace, 'create') as may
  from pg_class c
 where c.oid = 'stepwell.finished_runs'::regclass;

-- name: old_partitions
-- Days that are past their time. Those of what is told of runs, by the day a run was started, stay for as long as
-- any run of that day is kept.
select p.parent, p.part
  from (select parent.relname::text as parent, child.relname::text as part,
               to_date(right(child.relname, 8), 'YYYYMMDD') as day
          from pg_inherits i
          join pg_class parent on parent.oid = i.inhparent
          join pg_class child on child.oid = i.inhrelid
         where parent.relnamespace = (select c.relnamespace from pg_class c where c.oid = 'stepwell.runs'::regclass)
           and child.relname ~ '_\d{8}$') p
 where (p.day + 1)::timestamp at time zone 'UTC' <= stepwell.now() - :keep::interval
   and (p.parent = 'finished_runs'
        or not exists (select from stepwell.runs r
                        where r.id >= stepwell.first_id(p.day) and r.id < stepwell.first_id(p.day + 1))
       and not exists (select from stepwell.finished_runs f
                        where f.id >= stepwell.first_id(p.day) and f.id < stepwell.first_id(p.day + 1))
       and not exists (select from stepwell.kept_runs k
                        where k.id >= stepwell.first_id(p.day) and k.id < stepwell.first_id(p.day + 1)))
 order by p.parent = 'finished_runs' desc, p.day;

-- name: drop_partition
select stepwell.drop_partition(:parent::text, :part::text) as dropped;

-- name: forget_strays
-- Rows of days that had no partition, when their time is past. Those that are kept for ever stay where they are.
with gone as materialized (
    select d.id, d.finished_at
      from stepwell.finished_runs_default d
     where d.finished_at < stepwell.now() - :keep::interval
       and coalesce(d.keep, (select q.keep from stepwell.queues q where q.name = d.queue), '') <> 'forever'
     order by d.id
     limit :limit
)
delete from stepwell.finished_runs_default d
 where d.id = any(array(select g.id from gone g))
   and d.finished_at < stepwell.now() - :keep::interval
returning d.id;

-- name: forget_brief_runs
-- Runs that are not to be kept, an hour after they finished: who waits for them has had their result. They are looked up
-- in the days in which they finished: joined, a session that had planned it on empty tables went along all there are.
with gone as materialized (
    select f.id, f.finished_at
      from stepwell.finished_runs f
     where f.keep = 'none'
       and f.finished_at < stepwell.now() - :after::interval
     order by f.id
     limit :limit
)
delete from stepwell.finished_runs f
 where f.id = any(array(select g.id from gone g))
   and f.finished_at between (select min(g.finished_at) from gone g) and (select max(g.finished_at) from gone g)
returning f.id;

-- name: brief_queues
select q.name from stepwell.queues q where q.keep = 'none';

-- name: forget_brief_queues
-- The same by the word of their queues: a walk along the ids of the last days, some at a time.
with seen as materialized (
    select f.id, f.finished_at, f.keep is null and f.queue = any(:queues::text[]) as brief
      from stepwell.finished_runs f
     where f.id > :last::uuid
       and f.finished_at between stepwell.now() - interval '2 days' and stepwell.now() - :after::interval
     order by f.id
     limit :limit
), gone as (
    delete from stepwell.finished_runs f
     where f.id = any(array(select s.id from seen s where s.brief))
       and f.finished_at between (select min(s.finished_at) from seen s) and (select max(s.finished_at) from seen s)
    returning f.id
)
select (select s.id from seen s order by s.id desc limit 1) as last, (select count(*) from gone) as gone;
