"""Requests that are not part of Kafka: between the processes of one broker, over unix sockets."""
