"""Tools for asyncio: background tasks, group commit, retries while the database is away, pauses of the garbage
collector."""
