"""Wakes and claims: how a worker hears that there may be work, and how it claims work."""
