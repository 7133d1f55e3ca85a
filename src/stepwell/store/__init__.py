"""Access to Postgres: connections, sessions, statements, the schema, and the embedded server. It knows nothing of
runs."""
