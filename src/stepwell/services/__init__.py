"""The periodic parts. Each looks at what is, does what is due, and says when to look again."""
