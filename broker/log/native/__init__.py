"""Native topics: one readable stream entry per record, shared with Redis applications."""
