"""Client connections: framing, ordered replies, back-pressure."""
