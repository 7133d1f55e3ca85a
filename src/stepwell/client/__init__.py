"""The client: verbs called from outside of a run, and the batches, waiters and retries behind them."""
