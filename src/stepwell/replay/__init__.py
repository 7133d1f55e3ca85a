"""Replay of workflow code on an event loop of our own: events in, commands out. No database, network or clock."""
