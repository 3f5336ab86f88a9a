"""Partition logs: append, read, tail cache, retention."""
