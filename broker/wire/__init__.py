"""The Kafka protocol as pure functions: bytes to messages and back. No I/O lives here."""
