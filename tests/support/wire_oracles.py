"""What an oracle cannot check: (API key, version) and why. Nothing is skipped in silence.

A test holds these tables against what the oracles really know, and demands that every API and
version we serve is known to at least one of them.
"""

from __future__ import annotations

NOT_IN_KAFKA_PYTHON: dict[tuple[int, int], str] = {}
_DROPPED = "Kafka 4 dropped it; we understand it only to refuse it"
NOT_IN_KIO: dict[tuple[int, int], str] = {(0, 0): _DROPPED, (0, 1): _DROPPED, (0, 2): _DROPPED}
