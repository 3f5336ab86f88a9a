"""One worker process: bytes -> frame -> message -> handler -> log -> store."""
