"""What `stepwell bench` measures: Stepwell on this database, and beside it the database alone."""
