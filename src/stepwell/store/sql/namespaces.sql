-- namespaces: which database a connection is on. Asked on connections of the user's: no right is needed, and nothing fails.

-- name: namespace
select current_database()::text as database,
       coalesce(host(inet_server_addr()) || ':' || inet_server_port(), 'its local socket') as server,
       has_function_privilege('pg_catalog.pg_control_system()', 'execute') as may_ask,
       (select obj_description(c.oid, 'pg_class')
          from pg_catalog.pg_class c
          join pg_catalog.pg_namespace n on n.oid = c.relnamespace
         where n.nspname = :schema::text
           and c.relname = 'migrations') as mark;

-- name: system_identifier
-- The same for a server and its replicas.
select s.system_identifier::text as system from pg_control_system() s;
