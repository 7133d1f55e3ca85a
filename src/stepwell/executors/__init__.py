"""Where a definition's body runs: on the loop, in a thread, or in a process of its own."""
