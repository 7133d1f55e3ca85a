"""The verbs from outside of a run, and what they share."""
