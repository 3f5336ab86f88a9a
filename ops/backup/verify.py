"""Verifies a backup: loads it into a store of its own, and reads all of it as a broker would.

The backup itself is only read: the store gets links to its files, and writes to one beside them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from moldau.broker.coordinator.groups.serialization import loaded_group
from moldau.broker.errors import StoreFault
from moldau.broker.store.append_parts import link_parts
from moldau.broker.store.backup import BackupStore, Counted, MarkedTopic, is_native, log_key
from moldau.broker.store.format import migrate
from moldau.broker.store.topics import TopicRecord
from moldau.broker.store_loss.epochs import Epochs
from moldau.broker.txn import record as txn_record
from moldau.ops.backup.files import Progress, check_files
from moldau.ops.backup.fold import Folded, LogFold
from moldau.ops.backup.manifest import APPEND_ONLY, BadBackup, Manifest, read_manifest
from moldau.ops.backup.restore import check_store_format
from moldau.ops.serve.scratch_store import NotLoadedError, scratch_store


class VerifiedTopic(msgspec.Struct):
    name: str
    is_native: bool
    partitions: list[Folded]

    @property
    def records(self) -> int:
        return sum(one.records for one in self.partitions)

    @property
    def batches(self) -> int:
        return sum(one.batches for one in self.partitions)


class Verified(msgspec.Struct):
    """What a backup holds, and what is wrong with it."""

    taken_at_ms: int
    version: str
    store_format: str
    bytes: int
    topics: list[VerifiedTopic]
    groups: int = 0
    committed_offsets: int = 0
    transactional_ids: int = 0
    open_transactions: int = 0
    users: int = 0
    problems: list[str] = []

    @property
    def is_good(self) -> bool:
        return not self.problems


def verify(
    directory: Path, *, begin: Callable[[int], Progress], loading: Callable[[], None]
) -> Verified:
    """Raises BadBackup if it cannot be loaded, and ConfigError without an embedded store."""
    manifest = read_manifest(directory)
    check_store_format(manifest)
    check_files(directory, manifest, begin(manifest.bytes))
    mark = manifest.mark
    found = Verified(mark.at_ms, manifest.version, mark.format, manifest.bytes, [])
    with tempfile.TemporaryDirectory(prefix="moldau-") as made:
        _link_files(directory, Path(made))
        try:
            with scratch_store(Path(made), loading) as store:
                _read_everything(store, manifest, found)
        except NotLoadedError as fault:
            raise BadBackup(f"the store cannot load the backup: {fault}") from None
        except StoreFault as fault:
            raise BadBackup(f"the loaded backup cannot be read: {fault}") from None
    return found


def _link_files(directory: Path, made: Path) -> None:
    try:
        link_parts(directory / APPEND_ONLY, made)
    except ValueError as fault:
        raise BadBackup(f"{directory / APPEND_ONLY}: {fault}") from None


def _read_everything(store: BackupStore, manifest: Manifest, found: Verified) -> None:
    mark, problems = manifest.mark, found.problems
    if store.marked_with() != mark.value:
        raise BadBackup("the store's file does not end at the mark of the manifest")
    migrate(store)
    records = {record.name: record for record in store.live_topics()}
    for marked in mark.topics:
        record = records.pop(marked.name, None)
        if record is None:
            problems.append(f"topic {marked.name} is missing")
        else:
            found.topics.append(_topic(store, record, marked, problems))
    problems += [f"topic {name} is not in the manifest" for name in records]
    _compare(store.counted(), mark.counted, problems)
    found.users = mark.counted.users
    _groups(store, found)
    _transactions(store, found)


def _compare(counted: Counted, marked: Counted, problems: list[str]) -> None:
    for name in Counted.__struct_fields__:
        there, expected = getattr(counted, name), getattr(marked, name)
        if there != expected:
            problems.append(f"{name.replace('_', ' ')}: {there}, not {expected}")


def _topic(
    store: BackupStore, record: TopicRecord, marked: MarkedTopic, problems: list[str]
) -> VerifiedTopic:
    verified = VerifiedTopic(record.name, is_native(record), [])
    if record.topic_id.hex() != marked.topic_id or record.partitions != len(marked.partitions):
        problems.append(f"topic {record.name} is not the one of the manifest")
        return verified
    for at, expected in enumerate(marked.partitions):
        log = log_key(record, at)
        extent = store.extent(log)
        folded = _native(extent.entries) if verified.is_native else _log(store, log)
        if not expected.is_held_by(extent):
            folded.problems.append(
                f"it has {extent.entries} entries up to {extent.last_id}, "
                f"not {expected.entries} up to {expected.last_id} or above"
            )
        elif folded.entries != expected.entries:
            folded.problems.append(f"{folded.entries} of {expected.entries} entries can be read")
        problems += [f"{record.name} {at}: {problem}" for problem in folded.problems]
        verified.partitions.append(folded)
    return verified


def _native(entries: int) -> Folded:
    """A record is an entry, and its offset is its id: there is nothing to be folded."""
    return Folded(entries=entries, records=entries)


def _log(store: BackupStore, log: bytes) -> Folded:
    saved = store.saved_start(log)
    try:
        epochs = Epochs.parse(saved.epochs)
    except ValueError as fault:
        return Folded(start=saved.start, problems=[str(fault)])
    fold = LogFold(saved.start, epochs, saved.clean)
    fold.cleaned(store.cleaned_entries(log, saved.clean))
    fold.live(store.entries(log))
    return fold.result()


def _groups(store: BackupStore, found: Verified) -> None:
    for stored in store.groups():
        try:
            offsets = loaded_group(stored).offsets
        except (ValueError, msgspec.DecodeError) as fault:
            found.problems.append(f"group {stored.group_id} cannot be read: {fault}")
            continue
        found.groups += 1
        found.committed_offsets += len(offsets)


def _transactions(store: BackupStore, found: Verified) -> None:
    for name, data in store.transactions():
        try:
            state = txn_record.decode(data or b"").state
        except (ValueError, msgspec.DecodeError) as fault:
            found.problems.append(f"transactional id {name} cannot be read: {fault}")
            continue
        found.transactional_ids += 1
        found.open_transactions += state is txn_record.TxnState.ONGOING
