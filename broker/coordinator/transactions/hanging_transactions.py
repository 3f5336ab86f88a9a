"""Aborts hanging transactions: open in a log, although no coordinator is going to end them.

They appear when the store loses its tail. A log may have lost a marker that its coordinator knows
to be written, or whose transactional id is lost too. When a log begins a new leader epoch, every
coordinator is asked about the transactions that the log had open. Those that a coordinator will
still end are left to it; the rest is aborted, or read_committed consumers would wait forever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Protocol

from moldau.broker.coordinator.peers import Links, StoreView
from moldau.broker.errors import MoldauError
from moldau.broker.log.callbacks import Completion, await_callback
from moldau.broker.log.partition import PartitionLog
from moldau.broker.log.writing.append import ADMINISTRATORS, Marker
from moldau.broker.txn.record import TxnPartition, TxnView
from moldau.broker.wire.apis import ApiKey
from moldau.broker.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from moldau.broker.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from moldau.broker.wire.schema import Message

logger = logging.getLogger("moldau.coordinator")

LIST_VERSION, DESCRIBE_VERSION = 2, 0
LOOK_AGAIN_S = 2.0  # coordinators load, or end their own transactions
NOT_ENDED = ("Ongoing", "PrepareCommit", "PrepareAbort")


class Transactions(Protocol):
    """The transactional ids of this worker."""

    def loading(self) -> int: ...
    def knows(self, store_id: bytes) -> bool: ...
    def is_ending(self, producers: Collection[int]) -> bool: ...
    def views(self) -> list[TxnView]: ...


class NotAnswered(MoldauError):
    """A coordinator did not list its open transactions."""


class HangingTransactions:
    """`store`: as this worker sees it. A coordinator that sees another store id has yet
    to write its markers again, and must not be believed that it has none to write."""

    def __init__(
        self,
        transactions: Transactions,
        links: Links,
        store: StoreView,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        *,
        worker: int,
        workers: int,
    ) -> None:
        self._transactions = transactions
        self._links = links
        self._store = store
        self._spawn = spawn
        self._others = [other for other in range(workers) if other != worker]
        self._locks = {other: asyncio.Lock() for other in self._others}  # a link takes one request
        self._looking: set[PartitionLog] = set()

    def look(self, log: PartitionLog, place: TxnPartition) -> None:
        """Look after a log that began a new leader epoch with transactions open."""
        if log not in self._looking:
            self._looking.add(log)
            self._spawn(self._look(log, place))

    async def _look(self, log: PartitionLog, place: TxnPartition) -> None:
        try:
            # Coordinators that live write their last markers again first.
            await asyncio.sleep(LOOK_AGAIN_S)
            while left := log.transactions_left_open():
                try:
                    for producer_id in left - await self._awaited(left, place):
                        await self._abort(log, producer_id)
                except MoldauError as fault:
                    logger.warning("%r: its open transactions have to wait: %s", log, fault)
                await asyncio.sleep(LOOK_AGAIN_S)
        finally:
            self._looking.discard(log)

    async def _abort(self, log: PartitionLog, producer_id: int) -> None:
        known = log.producers().get(producer_id)
        if known is None:
            return
        logger.warning(
            "%r: the transaction of producer %d, open from offset %d on, is aborted: no "
            "coordinator knows it any more",
            *(log, producer_id, known.open_from),
        )
        marker = Marker(producer_id, known.epoch, ADMINISTRATORS, commit=False)

        def begin(done: Completion) -> None:
            log.write_marker(marker, done)

        await await_callback(begin)

    async def _awaited(self, producers: set[int], place: TxnPartition) -> set[int]:
        """The producers whose marker a coordinator will still write there. Raises NotAnswered."""
        is_known = self._transactions.knows(self._store.store_id)
        if not is_known or self._transactions.loading() or self._transactions.is_ending(producers):
            raise NotAnswered("this worker loads its transactional ids, or ends transactions")
        awaited = {
            view.producer_id
            for view in self._transactions.views()
            if view.producer_id in producers
            and view.state in NOT_ENDED
            and place in view.partitions
        }
        for other in self._others:
            awaited |= await self._awaited_by(other, producers, place)
        return awaited

    async def _awaited_by(self, other: int, producers: set[int], place: TxnPartition) -> set[int]:
        listed = await self._ask(
            other,
            ApiKey.LIST_TRANSACTIONS,
            LIST_VERSION,
            ListTransactionsRequest(
                list(NOT_ENDED), sorted(producers), store_id=self._store.store_id
            ),
        )
        if not isinstance(listed, ListTransactionsResponse) or listed.error_code:
            raise NotAnswered(f"worker {other} does not list its transactional ids")
        names = [found.transactional_id for found in listed.transaction_states]
        if not names:
            return set()
        described = await self._ask(
            other,
            ApiKey.DESCRIBE_TRANSACTIONS,
            DESCRIBE_VERSION,
            DescribeTransactionsRequest(names),
        )
        if not isinstance(described, DescribeTransactionsResponse):
            raise NotAnswered(f"worker {other} does not describe its transactional ids")
        return {
            found.producer_id
            for found in described.transaction_states
            for topic in found.topics
            if topic.topic == place.topic and place.partition in topic.partitions
        }

    async def _ask(self, other: int, api: ApiKey, version: int, request: Message) -> Message | None:
        async with self._locks[other]:
            answer: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
            self._links.link(other, api, version).send(request, answer.set_result)
            return await answer
