"""Transactions of kafka-python work unmodified."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.brokers.running import Broker
from tests.support.clients.kafka_python import KafkaPython
from tests.support.compat.transaction_events import (
    CompactionTests,
    KilledWorkerTests,
    broker_of_several_workers,
)
from tests.support.compat.transactions import TransactionTests


@pytest.fixture(scope="module")
def moldau() -> Iterator[Broker]:
    yield from broker_of_several_workers()


@pytest.fixture(scope="module")
def client() -> KafkaPython:
    return KafkaPython()


class TestTransactions(TransactionTests):
    pass


class TestKilledWorkers(KilledWorkerTests):
    pass


class TestCompaction(CompactionTests):
    pass
