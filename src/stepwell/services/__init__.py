"""Services: periodic background work. Each one finds what is due, does it, and returns when to run again."""
