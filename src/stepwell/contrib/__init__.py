"""Stepwell beside other libraries, one module for each. A module asks for its library only when it is used."""
