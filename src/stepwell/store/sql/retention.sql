-- retention: finished runs are deleted, by whole days where possible.

-- name: may_change_tables
-- True if this role can create and drop partitions: only the tables' owner can, or a member of that role.
select pg_has_role(c.relowner, 'usage') and has_schema_privilege(c.relnamespace, 'create') as may
  from pg_class c
 where c.oid = 'stepwell.finished_runs'::regclass;

-- name: old_partitions
-- Partitions past their retention time. Partitions of tables about runs, which are by the day of a run's start, stay
-- while any run of that day is kept.
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
-- Rows of the default partition, for days that had none of their own, past their retention time. Rows that are kept for
-- ever stay.
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
-- Deletes runs that are not to be kept, an hour after they finished: their waiters have had the result. They are looked
-- up in the days in which they finished: with a join, a session that had planned it on empty tables scanned all rows.
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
-- Deletes the finished runs of queues that keep none: a walk along the ids of the last days, a page at a time.
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
