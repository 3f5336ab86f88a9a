"""Appending to a log: the machine, what it appends, and its shell."""
