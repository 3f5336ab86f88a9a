"""A lake: Delta tables in a directory, commits and locks, compaction and SQL."""
