"""The limits of transactions."""

from __future__ import annotations

from msgspec import Struct


class TxnConfig(Struct, frozen=True):
    """The broker's transaction settings, under Kafka's names where Kafka has one."""

    max_timeout_ms: int = 900_000
    """`transaction.max.timeout.ms`"""
    id_expiration_ms: int = 7 * 24 * 3_600_000
    """`transactional.id.expiration.ms`"""
    wait_for_markers_ms: int = 100
    """How long a request waits for the previous transaction to end. Kafka answers
    CONCURRENT_TRANSACTIONS at once, which costs clients 20 ms and more per transaction."""
    complete_after_ms: int = 1_000
    """Complete* is stored with the next change, or after this long without one."""
    persist_retry_ms: int = 1_000
    """Delay before a failed write is tried again."""
