"""Claims: where to look for work next, and how it comes in."""
