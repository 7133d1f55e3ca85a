"""The command line: a door, like any other. It asks the app, and prints."""
