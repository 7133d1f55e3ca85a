"""Workflow code, run on a loop of its own: events in, commands out. No database, no network, no clock."""
