"""Tools for asyncio: parts in the background, group commits, outages, the collector."""
