"""Reading a log: from memory and from the store."""
