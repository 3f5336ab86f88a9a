"""The format of the store: its key names, and the change from the format before.

Format 1 had no hash tags: `moldau:orders:0:state` is `{moldau:orders:0}:state` in format 2, and
groups have the tag of their slot (`keys.py`). `migrate` renames one key at a time, and is run again
from the start if it was interrupted. The supervisor runs it before any worker is started, so no key
is used while it is renamed.

`moldau:format` names the format and the oldest version of Moldau that knows it. A store without it
is of format 1, or empty. Moldau 0.2 does not look at it, so it is kept out by something that it
does look at: a record among the topics (`GUARD`) whose configuration cannot be read, at which its
workers refuse to start. No topic can have that name.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from moldau.broker.errors import StoreRefused
from moldau.broker.placement import slot_of
from moldau.broker.store import keys

if TYPE_CHECKING:
    from moldau.broker.store.blocking import BlockingStore
    from moldau.broker.store.topics import TopicRecord

logger = logging.getLogger("moldau.store")

CURRENT = 2
NEEDS = "0.3.0"  # the oldest version of Moldau that knows this format
CURRENT_VALUE = f"{CURRENT} {NEEDS}".encode()
GUARD = "~format"

STEP = 500  # keys to read or rename in one round trip
PROGRESS_EVERY_S = 5.0

_BESIDE = re.compile(rb"(moldau:[^:{}]+:\d+)(:(?:state|times|marks|cleaner|clean:\d+(?::times)?))")
_GROUP = re.compile(rb"moldau:group:([^:]*)(:offsets)?")
_SLOT = re.compile(rb"moldau:slot:(\d+)")


def check_format(stored: bytes) -> None:
    """Check that this version can serve the store. Raises StoreRefused."""
    number, _, version = stored.decode("utf-8", "replace").partition(" ")
    if number != str(CURRENT):
        needed = f"it needs Moldau {version} or newer" if version else "a newer Moldau wrote it"
        raise StoreRefused(
            f"the store has format {number}, this version knows {CURRENT}: {needed}. "
            "Install that, or give another store (--data-dir, --redis)"
        )


def check_not_newer(stored: bytes) -> None:
    """Check that this version can serve the store, as it is or changed. Raises StoreRefused."""
    number = stored.partition(b" ")[0]
    if not number.isdigit() or int(number) > CURRENT:
        check_format(stored)


class Change(NamedTuple):
    """What `migrate` would do."""

    found: int  # the format of the store; 0: it is empty
    refusal: str = ""  # why it would refuse the store
    keys: int = 0
    renames: int = 0


def planned_change(store: BlockingStore) -> Change:
    """What `migrate` would do with the store. It is only read."""
    stored = store.format()
    if stored is not None:
        number = stored.partition(b" ")[0]
        try:
            check_format(stored)
        except StoreRefused as refusal:
            return Change(int(number) if number.isdigit() else -1, str(refusal))
        return Change(CURRENT)
    if store.is_unused():
        return Change(0)
    renaming = Renaming(store.topic_records())
    found = {key for some in store.own_keys(STEP) for key in some}
    return Change(1, "", len(found), sum(renaming.new_name(key) is not None for key in found))


def refuse_old_format() -> StoreRefused:
    return StoreRefused(
        f"the store has format 1, workers need {CURRENT}: it is changed when moldau serve starts, "
        "so stop it and start it again"
    )


def old_state(record: TopicRecord) -> bytes:
    """A key that every topic of format 1 has."""
    return keys.stream(record.name, record.incarnation, 0) + b":state"


class Renaming:
    """The names of format 2 for those of format 1."""

    def __init__(self, topics: Iterable[TopicRecord]) -> None:
        self._native: dict[bytes, bytes] = {}
        for record in topics:
            if record.configs.get("moldau.storage", "").strip() != "native":
                continue
            pattern = record.configs.get("moldau.native.key", "").strip()
            for partition in range(record.partitions):
                stream = keys.native_key(pattern, record.name, partition)
                log = keys.stream(record.name, record.incarnation, partition)
                if keys.hash_tag(stream) is None:
                    logger.warning(
                        "topic %s: the key %r of its stream cannot be a hash tag: the topic cannot "
                        "move to a Redis Cluster",
                        record.name,
                        stream,
                    )
                self._native[log] = keys.beside(stream, log)

    def new_name(self, key: bytes) -> bytes | None:
        """The new name of a key; None: it keeps its name."""
        if found := _BESIDE.fullmatch(key):
            log, what = found.groups()
            beside = self._native.get(log, log)
            return beside + what if beside.startswith(b"{") else b"{%b}%b" % (beside, what)
        if found := _GROUP.fullmatch(key):
            group_id = keys.unescaped(found[1])
            slot = slot_of(group_id)
            return keys.offsets(slot, group_id) if found[2] else keys.group(slot, group_id)
        if found := _SLOT.fullmatch(key):
            return keys.groups(int(found[1]))
        return None


def migrate(store: BlockingStore, is_stopped: Callable[[], bool] = lambda: False) -> None:
    """Bring the store to the current format. Raises StoreRefused for one that is newer.

    Ends early when `is_stopped`: the next call goes on.
    """
    stored = store.format()
    if stored is not None:
        check_format(stored)
        return
    if store.is_unused():
        store.set_guard()
        store.set_format()
        return
    begun = time.monotonic()
    store.set_guard()  # first: no older version may start on half of it
    renaming = Renaming(store.topic_records())
    looked_at = renamed = 0
    said_at = begun
    logger.info("the store has format 1: its keys are renamed to those of format %d", CURRENT)
    for found in store.own_keys(STEP):
        if is_stopped():
            logger.warning("stopped while keys are renamed: the next start goes on")
            return
        names = [(old, new) for old in found if (new := renaming.new_name(old)) is not None]
        for old, new in store.rename(names):
            logger.error("%r is kept: there is a %r already", old, new)
        looked_at += len(found)
        renamed += len(names)
        if time.monotonic() - said_at >= PROGRESS_EVERY_S:
            said_at = time.monotonic()
            logger.info("renaming keys: %d of %d looked at", looked_at, store.key_count())
    store.set_format()
    logger.info(
        "the store has format %d now: %d keys renamed in %.1f s",
        CURRENT,
        renamed,
        time.monotonic() - begun,
    )
