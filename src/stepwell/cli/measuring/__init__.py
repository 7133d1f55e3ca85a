"""The measurements of `stepwell bench`: Stepwell on this database, and beside it the database alone."""
