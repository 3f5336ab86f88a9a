"""Runs state machines: events, effects, timers, writes, slots."""
