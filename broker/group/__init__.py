"""Consumer groups as state machines without I/O, clock or asyncio. See README.md."""
