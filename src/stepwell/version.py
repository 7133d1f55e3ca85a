"""The version of the package, read from here by its metadata and by workers."""

VERSION = "0.1.0"
