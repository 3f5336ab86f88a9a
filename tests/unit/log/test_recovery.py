"""Logs whose store lost their end, against a real store: what other workers do meanwhile, what
producers send again."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

import pytest

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.log.state.loading import Loading
from moldau.broker.log.state.log_state import SEQUENCE_MODULUS
from moldau.broker.log.writing.append_queue import shortage
from moldau.broker.log.writing.failed_batches import AWAITED_S, PRODUCERS_KEPT, FailedBatches
from moldau.broker.store.replication import NEVER
from moldau.broker.wire.batch import BatchHeader, read_header
from tests.support.drivers.log_host import Host, WaitedAppend, append, begin, until
from tests.support.stores.gaps import lose_and_go_on
from tests.support.stores.proxy import StoreProxy
from tests.support.stores.redis_server import RedisServer
from tests.unit.log.log_batches import plain, sequenced, values

PRODUCER = 7
_names = (f"recovery-{number}" for number in count())


async def five_batches(host: Host) -> Any:
    log = await host.create(next(_names))
    for sequence in range(5):
        assert await append(log, sequenced(PRODUCER, sequence)) == sequence
    return log


async def refusal(out: WaitedAppend) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        await out.outcome
    return refused.value.code


async def test_an_epoch_that_begins_while_the_log_is_loaded(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known with all that follows from it, however late another worker began it."""
    async with Host(server.url) as host:
        log = await five_batches(host)
        load = host.streams.saved_state

        async def lost_just_before(key: bytes, worker: int = 0) -> Any:
            monkeypatch.undo()
            lose_and_go_on(store, key, 2, 1000)
            return await load(key, worker)

        monkeypatch.setattr(host.streams, "saved_state", lost_just_before)
        log = host.log(log.topic)
        assert await append(log, sequenced(PRODUCER, 5)) == 1000
        assert log.leader_epoch == 1


async def test_an_append_out_and_readers_waiting_load_the_log_once(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two loads at a time, and the slower one would put an old fold in the place of the new."""
    loads = []
    run = Loading.run

    async def counted(loading: Loading) -> Any:
        loads.append(loading)
        return await run(loading)

    async with StoreProxy(server.port) as proxy, Host(proxy.url, "a") as host:
        log = await host.create(next(_names))
        await append(log, plain(b"x"))
        link = await proxy.link("a-bulk")
        link.replies.hold()
        out = begin(log, plain(b"y"))
        await until(lambda: link.replies.waiting > 0)
        monkeypatch.setattr(Loading, "run", counted)
        log.waiters.add(log, lambda: None)
        log.store_changed()
        link.replies.release()
        assert await out.outcome == 1
        assert await append(log, plain(b"z")) == 2
        assert await values(host, log) == [b"x", b"y", b"z"]
        assert len(loads) == 1


async def test_a_batch_does_not_overtake_one_that_is_sent_again(
    server: RedisServer, store: Any
) -> None:
    async with Host(server.url) as host:
        log = await five_batches(host)
        lose_and_go_on(store, log.key, 2, 1000)
        log = host.log(log.topic)
        late = WaitedAppend(sequenced(PRODUCER, 5))
        late.given_up = True
        log.append(late)
        overtaking = begin(log, sequenced(PRODUCER, 6))
        assert await refusal(overtaking) is ErrorCode.KAFKA_STORAGE_ERROR
        assert await append(log, sequenced(PRODUCER, 5)) == 1000
        assert await append(log, sequenced(PRODUCER, 6)) == 1001


async def test_what_follows_a_refused_batch_is_sent_again_behind_it(server: RedisServer) -> None:
    """Also in a log that lost nothing, where it would be out of order."""
    async with Host(server.url) as host:
        log = await five_batches(host)
        refused = WaitedAppend(sequenced(PRODUCER, 5), replicas=1)
        log.append(refused)
        assert await refusal(refused) is ErrorCode.NOT_ENOUGH_REPLICAS
        for sequence in (6, 7):
            assert await refusal(begin(log, sequenced(PRODUCER, sequence))) is (
                ErrorCode.KAFKA_STORAGE_ERROR
            )
        for sequence in (5, 6, 7):
            assert await append(log, sequenced(PRODUCER, sequence)) == sequence
        skipping = begin(log, sequenced(PRODUCER, 9))
        assert await refusal(skipping) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("reached", [NEVER, 0])
async def test_a_batch_that_may_be_in_the_log_is_not_said_to_be_lost(reached: int) -> None:
    fault = shortage(WaitedAppend(sequenced(PRODUCER, 0), replicas=1), reached)
    assert fault is not None
    assert fault.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


# --- which batches wait ---


def batch(sequence: int, producer: int = PRODUCER, epoch: int = 0) -> BatchHeader:
    return read_header(sequenced(producer, sequence, epoch=epoch))


def is_refused(retries: FailedBatches, header: BatchHeader, expected: int | None) -> bool:
    try:
        retries.check(header, expected)
    except KafkaError as fault:
        return fault.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    return False


def test_the_first_failed_batch_is_waited_for() -> None:
    retries = FailedBatches(time.monotonic)
    assert not retries
    for sequence in (6, 5, 7):
        retries.failed(batch(sequence))
    assert is_refused(retries, batch(6), None)
    assert is_refused(retries, batch(6), 2)
    assert not is_refused(retries, batch(6, producer=8), None)
    assert not is_refused(retries, batch(5), 2)
    assert not retries
    assert not is_refused(retries, batch(6), 6)


def test_a_batch_that_failed_and_is_in_the_log_is_not_waited_for() -> None:
    retries = FailedBatches(time.monotonic)
    retries.failed(batch(5))
    assert not is_refused(retries, batch(6), 6)


def test_a_producer_that_began_again_is_not_held_up() -> None:
    retries = FailedBatches(time.monotonic)
    retries.failed(batch(5))
    assert not is_refused(retries, batch(0, epoch=1), None)
    assert not retries


def test_what_skips_a_failed_batch_is_not_out_of_order_until_that_is_given_up() -> None:
    """librdkafka would send everything that is unanswered again, under a new epoch."""
    now = 0.0
    retries = FailedBatches(lambda: now)
    out_of_order = KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    fenced = KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
    retries.failed(batch(5))
    now = AWAITED_S
    assert retries.answer(batch(6), out_of_order).code is ErrorCode.KAFKA_STORAGE_ERROR
    assert retries.answer(batch(6), fenced) is fenced
    assert retries.answer(batch(4), out_of_order) is out_of_order
    assert retries.answer(batch(6, producer=8), out_of_order) is out_of_order
    retries.failed(batch(6))
    now += 1
    assert retries.answer(batch(6), out_of_order) is out_of_order
    assert not retries


def test_sequences_wrap() -> None:
    retries = FailedBatches(time.monotonic)
    retries.failed(batch(SEQUENCE_MODULUS - 1))
    assert is_refused(retries, batch(0), None)


def test_what_is_kept_of_producers_that_never_come_back_is_bounded() -> None:
    retries = FailedBatches(time.monotonic)
    retries.failed(read_header(plain(b"not idempotent")))
    assert not retries
    for producer in range(PRODUCERS_KEPT + 1):
        retries.failed(batch(5, producer))
    assert not is_refused(retries, batch(6, 0), None)
    assert is_refused(retries, batch(6, 1), None)
