"""Logs of a store that was restored from a backup: each begins a new leader epoch.

No worker runs yet. The copy is whole, so a log has lost nothing *in* it: what it lacks was appended
after the backup, at offsets that it does not know. The new epoch begins above everything that the
backup knows, and a margin. What a worker had reserved counts as given out.

The epoch begins with a control record. Otherwise the log would end in a gap, and clients that read
up to its end (Kafka Connect and Streams at their start, `kcat -e`) would wait for the next record.
Consumers skip control records, and their positions are behind it then.
"""

from __future__ import annotations

from collections.abc import Mapping

from moldau.broker.errors import StoreRefused
from moldau.broker.store.backup import BackupStore, is_native, log_key
from moldau.broker.store.streams import decode_part
from moldau.broker.store_loss.epochs import Epoch, Epochs
from moldau.broker.wire.batch import headers, set_base_offset
from moldau.broker.wire.control import EndMarker, build_end_marker

MOST = 1 << 53  # Lua's numbers are exact below
NO_PRODUCER = -1


def begin_again(
    store: BackupStore, *, offsets: int, epochs: int, native_ms: int, now_ms: int
) -> int:
    """Begin a new epoch in every log, `offsets` and `epochs` above what is known; returns in how
    many.

    `native_ms`: native topics, whose offsets are times, go on above this one. Raises StoreFault.
    """
    count = 0
    for topic in store.topic_records():
        for at in range(topic.partitions):
            log = log_key(topic, at)
            if is_native(topic):
                store.raise_native_id(log, native_ms)
                continue
            state, last = store.log_state(log), store.last_entry(log)
            if b"start" not in state or (last is None and not store.exists(log)):
                continue  # it is being deleted
            end = 0
            for header in headers(last.blob) if last is not None else ():
                end = header.next_offset
            known = next_epoch(state, end, offsets=offsets, epochs=epochs)
            if known.all[-1].start >= MOST:
                raise StoreRefused(
                    f"topic {topic.name}, partition {at} cannot go on {offsets:,} offsets higher: "
                    "its offsets are used up; choose a smaller --margin"
                )
            _begin(store, log, known, [name for name in state if _is_used_up(name)], now_ms)
            count += 1
    store.forget_clean_shutdown()
    return count


def next_epoch(state: Mapping[bytes, bytes], end: int, *, offsets: int, epochs: int) -> Epochs:
    """The epochs of a log with one more. `state`: the fields of its state in the store; `end`: of
    its last entry. Raises ValueError."""
    known = Epochs.parse(state.get(b"epochs"))
    start = int(state[b"start"])
    end = max(end, decode_part(state.get(b"clean")).end, start, known.start)
    reserved = [int(value) for name, value in state.items() if name.startswith(b"r:")]
    reached = max(end, *reserved, int(state.get(b"floor", 0)), 0)
    number = max(known.current, int(state.get(b"floor_epoch", 0)))
    return Epochs((*known.since(start).all, Epoch(number + epochs, reached + offsets, end)))


def _is_used_up(name: bytes) -> bool:
    """Reservations and known ends lie below the new epoch."""
    return name.startswith((b"r:", b"c:")) or name in (b"floor", b"floor_epoch")


def _begin(
    store: BackupStore, log: bytes, known: Epochs, used_up: list[bytes], now_ms: int
) -> None:
    marker = build_end_marker(NO_PRODUCER, NO_PRODUCER, EndMarker(True, 0), now_ms)
    set_base_offset(marker, known.start, known.current)
    store.begin_epoch(
        log, start=known.start, number=known.current, text=known.text,
        first_entry=bytes(marker), used_up=used_up,
    )  # fmt: skip
