"""A consumer that never commits, as a process to be killed: writes the values it reads.

python -m tests.integration.native.native_reader <bootstrap> <group> <topic>
"""

import sys
from typing import Any

from confluent_kafka import Consumer


def main(bootstrap: str, group: str, topic: str) -> None:
    consumer: Any = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "to-be-killed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 1000,
            "heartbeat.interval.ms": 300,
        }
    )
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(1.0)
        if message is not None and not message.error():
            print(message.value().decode(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
