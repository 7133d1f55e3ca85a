"""Objects for code inside a body: `current`, `workflow`, checkpoints, the body's transaction, its log."""
