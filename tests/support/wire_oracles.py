"""What an oracle cannot check: (API key, version) and why. Nothing is skipped in silence.

A test holds these tables against what the oracles really know, and demands that every API and
version we serve is known to at least one of them.
"""

from __future__ import annotations

NOT_IN_KAFKA_PYTHON: dict[tuple[int, int], str] = {}
NOT_IN_KIO: dict[tuple[int, int], str] = {}
