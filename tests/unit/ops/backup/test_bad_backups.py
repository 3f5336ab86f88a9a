"""Backups that were cut, changed, or made by a newer version: each is refused, by name and cause,
and nothing is left of a restore."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from moldau.broker.store import keys
from moldau.broker.store.backup import MarkedTopic, StreamExtent
from moldau.ops.backup.files import BackupError
from moldau.ops.backup.manifest import APPEND_ONLY, MANIFEST, BadBackup, FileEntry, read_manifest
from moldau.ops.backup.restore import Restored, restore
from moldau.ops.backup.verify import Verified, verify
from moldau.ops.serve.scratch_store import scratch_store
from tests.unit.ops.backup.made import LOG, make_backup, with_mark, write_manifest

INCREMENT = f"{APPEND_ONLY}/appendonly.aof.1.incr.aof"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("good")
    return make_backup(directory / "backup", directory / "store")


@pytest.fixture
def backup(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "backup"))


def verified(backup: Path) -> Verified:
    return verify(backup, begin=lambda _: lambda _: None, loading=lambda: None)


def restored(backup: Path, data_dir: Path, margin: int | None = None) -> Restored:
    return restore(
        backup,
        data_dir,
        now_ms=0,
        margin=margin,
        begin=lambda _: lambda _: None,
        loading=lambda: None,
    )


def test_a_good_one(backup: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()}
    found = verified(backup)
    assert found.is_good, found.problems
    (topic,) = found.topics
    assert (topic.records, topic.batches, topic.partitions[0].end) == (30, 3, 30)
    assert before == {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()}

    done = restored(backup, tmp_path / "data", margin=1_000)
    assert (done.logs, done.margin, done.has_security) == (1, 1_000, False)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["lock", "store"]
    with scratch_store(tmp_path / "data" / "store") as store:
        state = store._redis.hgetall(b"{%b}:state" % LOG)
        assert store.extent(LOG) == StreamExtent(4, "6000-1")
        assert store._redis.hget(keys.EPOCHS.decode(), LOG.decode()) == b"1000"
    # Above what a worker had reserved, which is used up.
    assert state == {b"start": b"0", b"history": b"before", b"epochs": b"1000:6000:30"}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def change_number(backup: Path) -> None:
    path = backup / MANIFEST
    path.write_text(path.read_text().replace('"users": 0', '"users": 1'))


def newer_backup(backup: Path) -> None:
    manifest = msgspec.structs.replace(read_manifest(backup), backup_format=2)
    write_manifest(backup, manifest)


def newer_store(backup: Path) -> None:
    write_manifest(backup, with_mark(read_manifest(backup), format="3 0.9.0"))


def outside(backup: Path) -> None:
    manifest = read_manifest(backup)
    entry = manifest.files[INCREMENT]
    files = {**manifest.files, "../outside": entry}
    write_manifest(backup, msgspec.structs.replace(manifest, files=files))


def another_mark(backup: Path) -> None:
    write_manifest(backup, with_mark(read_manifest(backup), value="0" * 32))


def cut_and_sealed(backup: Path) -> None:
    """The manifest says that it is as it should be."""
    cut(backup / INCREMENT)
    content = (backup / INCREMENT).read_bytes()
    manifest = read_manifest(backup)
    entry = FileEntry(len(content), hashlib.sha256(content).hexdigest())
    files = {**manifest.files, INCREMENT: entry}
    write_manifest(backup, msgspec.structs.replace(manifest, files=files))


BAD: list[tuple[Callable[[Path], object], str]] = [
    (shutil.rmtree, "is no backup: it is not a directory"),
    (lambda at: (at / MANIFEST).unlink(), f"is no backup: it has no {MANIFEST}"),
    (lambda at: cut(at / INCREMENT), r"appendonly.aof.1.incr.aof was cut: [\d,]+ bytes, not"),
    (lambda at: change(at / INCREMENT), "appendonly.aof.1.incr.aof was changed: its checksum"),
    (lambda at: (at / INCREMENT).unlink(), "appendonly.aof.1.incr.aof: No such file"),
    (
        lambda at: (at / MANIFEST).write_bytes((at / MANIFEST).read_bytes()[:-20]),
        f"{MANIFEST} was cut or changed",
    ),
    (change_number, f"{MANIFEST} was changed: its checksum is another"),
    (newer_backup, "has backup format 2, this version knows 1"),
    (newer_store, "the store has format 3, this version knows 2: it needs Moldau 0.9.0 or newer"),
    (outside, r"names a file outside of the backup: \.\./outside"),
    (cut_and_sealed, "the store cannot load the backup: .*Unexpected end of file"),
    (another_mark, "does not end at the mark of the manifest"),
]


@pytest.mark.parametrize(("damage", "text"), BAD, ids=[text[:40] for _, text in BAD])
def test_a_bad_one_is_refused_by_name(
    backup: Path, tmp_path: Path, damage: Callable[[Path], object], text: str
) -> None:
    damage(backup)
    before = {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()}
    with pytest.raises(BadBackup, match=text):
        verified(backup)
    assert before == {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()}
    data_dir = tmp_path / "data"
    with pytest.raises(BadBackup, match=text):
        restored(backup, data_dir)
    assert not data_dir.exists() or [path.name for path in data_dir.iterdir()] == ["lock"]


def test_what_verify_finds_that_checksums_cannot(backup: Path) -> None:
    """A mark that says something else than the store holds."""
    manifest = read_manifest(backup)
    (topic,) = manifest.mark.topics
    longer = msgspec.structs.replace(topic, partitions=[StreamExtent(4, "30-1")])
    more = msgspec.structs.replace(manifest.mark.counted, groups=2)
    missing = MarkedTopic("payments", "00" * 16, False, [StreamExtent(1, "0-1")])
    write_manifest(backup, with_mark(manifest, topics=[longer, missing], counted=more))
    assert verified(backup).problems == [
        "orders 0: it has 3 entries up to 20-1, not 4 up to 30-1 or above",
        "topic payments is missing",
        "groups: 0, not 2",
    ]


def test_offsets_that_would_be_used_up(backup: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="choose a smaller --margin"):
        restored(backup, tmp_path / "data", margin=1 << 53)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["lock"]
