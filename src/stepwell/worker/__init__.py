"""The worker: claims runs, executes their bodies, and records the outcomes."""
