-- A mark that no other database has: it tells whether a connection of the user's is on the database that its app uses. A
-- comment, since every role may read it, and may ask for it where there is no such table.
do $$
begin
    execute format('comment on table stepwell.migrations is %L', 'namespace ' || gen_random_uuid());
end
$$;
