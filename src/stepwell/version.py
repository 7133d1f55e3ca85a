"""The version, in one place: the package's metadata and what a worker says of itself are read from here."""

VERSION = "0.1.0"
