"""Consumer groups: a state machine without I/O, clock or asyncio. See README.md."""
