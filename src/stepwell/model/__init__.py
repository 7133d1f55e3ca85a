"""Value types shared by every other part. They import only the standard library and msgspec."""
