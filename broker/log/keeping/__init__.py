"""Retention and compaction: what stays of a log."""
