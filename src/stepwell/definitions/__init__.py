"""What the decorators register, and the handles that definitions give out."""
