"""Why a topic is not created, or does not get more partitions: in Kafka's words, which scripts look
for."""

from __future__ import annotations

from moldau.broker.errors import ErrorCode, KafkaError

MAX_PARTITIONS = 10_000  # per topic: more is likely a mistake


def already_exists(name: str) -> KafkaError:
    return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")


def not_more_partitions(name: str, before: int, total: int) -> KafkaError:
    if total > before:
        text = f"{total} partitions: a topic can have 1 to {MAX_PARTITIONS}"
    elif total == before:
        text = f"Topic already has {before} partition(s)."
    else:
        text = (
            f"The topic {name} currently has {before} partition(s); {total} would not be an "
            "increase."
        )
    return KafkaError(ErrorCode.INVALID_PARTITIONS, text)
