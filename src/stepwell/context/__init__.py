"""What a body may ask for while it runs: `current`, `workflow`, checkpoints, its transaction, its log."""
