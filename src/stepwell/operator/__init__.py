"""The operator: the verbs of the command line, of HTTP and of the dashboard. `app.operator` is the way in."""
