-- namespaces: the database that a connection is on. Executed on the user's connections, so it needs no rights and
-- cannot fail.

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
-- Identifies a server; its replicas have the same identifier.
select s.system_identifier::text as system from pg_control_system() s;
