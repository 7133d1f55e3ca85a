"""How a worker comes by its claims, and how it hears that there may be some."""
