"""All that knows how to speak to Postgres, and nothing of what is said."""
