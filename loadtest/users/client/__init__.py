"""A small Kafka client that stamps what it writes and checks what it reads; without locust."""
