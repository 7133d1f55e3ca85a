"""Integrations with other libraries, one module for each. A module imports its library only when it is used."""
