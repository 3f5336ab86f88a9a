"""Takes a backup of a running broker with an embedded store.

The store's append-only file is a base, which never changes, and increments that only grow. So a
copy needs neither a fork nor memory, and nothing waits for it:

1. open every part that the file's manifest names: a part that a rewrite removes stays readable;
2. let the supervisor mark the store: the mark is the last command of the copy;
3. read the file's manifest again. If a rewrite has changed it meanwhile, begin again;
4. copy the parts, the last one up to the mark, and `security/`;
5. write the manifest.

Everything that was acknowledged before the mark was asked for is in the copy: the server writes
each command to its file before it replies.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from moldau.broker.store.append_parts import PARTS_NAME, Part, parts_text, read_parts
from moldau.broker.store.backup import Mark, mark_command
from moldau.ops.backup.files import BackupError, Progress, reason
from moldau.ops.backup.manifest import APPEND_ONLY, FORMAT, SECURITY, FileEntry, Manifest
from moldau.ops.backup.targets import Target
from moldau.ops.serve.control import ask_control, ask_status

ATTEMPTS = 20  # while the file is rewritten again and again
MARK_PATIENCE_S = 10.0
LOOK_EVERY_S = 0.02
CHUNK = 1 << 20

# Gets the whole number of bytes; returns what gets the bytes that were copied.
Begin = Callable[[int], Progress]


class Source(NamedTuple):
    """The parts of a marked store, open, and how much of each is copied."""

    mark: Mark
    store_id: str
    parts: list[tuple[Part, BinaryIO, int]]


def take_backup(control: Path, target: Target, version: str, begin: Begin) -> Manifest:
    """Write a backup to `target`. Raises BackupError; what is left of it is no backup then."""
    try:
        return _take(control, _running_store(control), target, version, begin)
    except (OSError, EOFError) as fault:
        what = reason(fault) if isinstance(fault, OSError) else str(fault)
        where = getattr(fault, "filename", None) or target.name
        raise BackupError(f"{where}: {what}; nothing was kept of the backup") from None
    finally:
        target.close()  # whatever ended it, a signal too


def _running_store(control: Path) -> dict[str, Any]:
    """What the supervisor says about its store. Raises BackupError, NotRunningError."""
    status = ask_status(control)
    if status["processes"][0]["state"] != "running":
        raise BackupError("the broker is starting or stopping: try again when it serves")
    store: dict[str, Any] = status["store"]
    return store


def _take(
    control: Path, store: dict[str, Any], target: Target, version: str, begin: Begin
) -> Manifest:
    with contextlib.ExitStack() as opened:
        source = _marked(control, store, opened)
        data_dir = Path(store["data_dir"])
        secrets = sorted(path for path in (data_dir / SECURITY).rglob("*") if path.is_file())
        total = sum(size for _, _, size in source.parts)
        total += sum(path.stat().st_size for path in secrets)
        target.check_room(total, data_dir, store["disk"]["min_free_bytes"] * 5 // 4)
        progress = begin(total)
        files: dict[str, FileEntry] = {}
        for part, file, size in source.parts:
            name = f"{APPEND_ONLY}/{part.name}"
            files[name] = target.add(name, file, size, progress)
        name = f"{APPEND_ONLY}/{PARTS_NAME}"
        text = parts_text(part for part, _, _ in source.parts)
        files[name] = target.add_content(name, text.encode())
        for path in secrets:
            name = f"{SECURITY}/{path.relative_to(data_dir / SECURITY)}"
            with path.open("rb", buffering=0) as secret:
                size = os.fstat(secret.fileno()).st_size
                files[name] = target.add(name, secret, size, progress)
    manifest = Manifest(FORMAT, version, source.store_id, source.mark, files)
    target.finish(manifest)
    return manifest


# --- the mark ---


def _marked(control: Path, store: dict[str, Any], opened: contextlib.ExitStack) -> Source:
    """Open the parts and mark the store. Raises BackupError."""
    if store["kind"] != "embedded":
        answer = ask_control(control, "mark-backup")  # it says what to do instead
        raise BackupError(str(answer.get("error")))
    folder = Path(store["data_dir"]) / "store" / "appendonlydir"
    for _ in range(ATTEMPTS):
        with contextlib.ExitStack() as now, contextlib.suppress(FileNotFoundError):
            text = (folder / PARTS_NAME).read_text()
            parts = read_parts(text)
            files = [
                now.enter_context((folder / part.name).open("rb", buffering=0)) for part in parts
            ]
            written = files[-1]
            begun = os.fstat(written.fileno()).st_size
            answer = ask_control(control, "mark-backup")
            if "error" in answer:
                raise BackupError(answer["error"])
            if (folder / PARTS_NAME).read_text() != text:
                continue  # a rewrite has begun or ended
            mark = msgspec.convert(answer["mark"], Mark)
            sizes = [os.fstat(file.fileno()).st_size for file in files[:-1]]
            sizes.append(_end_of_mark(written, begun, mark))
            opened.enter_context(now.pop_all())
            return Source(mark, answer["store_id"], list(zip(parts, files, sizes, strict=True)))
    raise BackupError("the store's file is rewritten without a pause: try again later")


def _end_of_mark(file: BinaryIO, begun: int, mark: Mark) -> int:
    """Where the file ends for this backup. The file is read from its beginning next.

    Raises BackupError.
    """
    command = mark_command(mark.value)
    deadline = time.monotonic() + MARK_PATIENCE_S
    for chunk_at, chunk in _growing(file, begun, len(command) - 1, deadline):
        at = chunk.find(command)
        if at >= 0:
            file.seek(0)
            return chunk_at + at + len(command)
    raise BackupError(
        "the store does not write to its file now: look at `moldau status` and the broker's log"
    )


def _growing(
    file: BinaryIO, begun: int, overlap: int, deadline: float
) -> Iterator[tuple[int, bytes]]:
    """Chunks of a file that grows, and where they begin. Each begins with the end of the last."""
    at, before = begun, b""
    file.seek(begun)
    while time.monotonic() < deadline:
        found = file.read(CHUNK)
        if not found:
            time.sleep(LOOK_EVERY_S)
            continue
        yield at - len(before), before + found
        at += len(found)
        before = (before + found)[-overlap:]
