"""Definitions of tasks, workflows and steps, and the handles on their runs and queues."""
