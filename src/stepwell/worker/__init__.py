"""Takes claims, runs bodies, settles outcomes. Knows the system only through its link."""
