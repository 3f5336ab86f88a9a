"""The lake: its Delta tables, and what is done with them: compaction, SQL, rows in order."""
