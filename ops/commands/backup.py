"""`moldau backup`: takes backups of a running broker, and verifies them."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from moldau.broker.settings.processes import ConfigError
from moldau.ops.backup.files import BackupError, make_directory, reason, remove_tree
from moldau.ops.backup.manifest import MANIFEST, BadBackup, Manifest
from moldau.ops.backup.plan import backup_name, is_backup_name, superfluous
from moldau.ops.backup.take import take_backup
from moldau.ops.backup.targets import DirectoryTarget, Target, TarTarget
from moldau.ops.backup.verify import Verified, verify
from moldau.ops.command_line import (
    discard_output,
    duration_text,
    parse_duration,
    parsed_by,
    positive,
    print_facts,
    print_json,
    print_table,
    size_text,
)
from moldau.ops.commands.backup_progress import ProgressLine
from moldau.ops.commands.status import local_port, not_running
from moldau.ops.serve.control import NotRunningError, ask_status
from moldau.ops.serve.runtime import LockedError, control_socket, runtime_dir, take_lock

DESCRIPTION = """\
Take a backup of a running broker with an embedded store, while producers write: everything that was
acknowledged before is in it. Or verify one: load it into a store of its own, and read all of it.
"""

EXAMPLES = """\
examples:
  moldau backup /backup/monday              of the broker of this user and machine on port 9092
  moldau backup /backup/monday --port 19092
  moldau backup /backup --every 1h --keep 24
                                            a directory for each, until SIGTERM; 24 stay
  moldau backup - | ssh backup.example.com 'umask 77; mkdir b && tar x -C b'
                                            as a tar archive; the manifest is its last file
  moldau backup verify /backup/monday       checksums, every record batch, groups, transactions
  moldau restore /backup/monday --data-dir ./data

DIR must not exist, or be empty. A backup is complete when it has a manifest.json, which is written
last. It holds the store and, of a broker with --secure, its keys and passwords' secrets: only its
user may read it. Configuration files of your own are not in it.

Without --port and --data-dir, it is the port of MOLDAU_BOOTSTRAP (HOST:PORT), else MOLDAU_PORT,
else 9092.

exit codes: 0 done, 1 not done, or the backup is bad (the message names the cause), 2 wrong usage
"""

LOCK = ".lock"
STANDARD_OUTPUT = "-"
DEFAULT_KEPT = 24


class Stopped(BaseException):
    """SIGTERM: what is under way is removed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.usage = "moldau backup [options] DIR\n       moldau backup verify [--json] DIR"
    parser.add_argument(
        "words", nargs="+", metavar="[verify] DIR", help="where the backup is, or is to be"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--port", metavar="PORT", help="bootstrap port of the broker")
    which.add_argument("--data-dir", metavar="DIR", help="the broker with this data directory")
    parser.add_argument(
        "--every", type=parsed_by(parse_duration), metavar="TIME",
        help="take one every 30min, 1h, 1d, in directories below DIR, until SIGTERM",
    )  # fmt: skip
    parser.add_argument(
        "--keep", type=positive, metavar="N",
        help=f"with --every: how many stay ({DEFAULT_KEPT} by default)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(backup_parser=parser)


def run(arguments: argparse.Namespace) -> int:
    *actions, directory = arguments.words
    is_verifying = actions == ["verify"]
    if actions and not is_verifying:
        arguments.backup_parser.error(f"one DIR, not {len(arguments.words)}")
    if arguments.words == ["verify"]:
        arguments.backup_parser.error("verify needs DIR; a directory of that name is ./verify")
    if directory == STANDARD_OUTPUT and (is_verifying or arguments.every or arguments.json):
        arguments.backup_parser.error("- goes without verify, --every and --json")
    if arguments.keep is not None and arguments.every is None:
        arguments.backup_parser.error("--keep goes with --every")
    if is_verifying and (arguments.every or arguments.port or arguments.data_dir):
        arguments.backup_parser.error(
            "verify asks no broker: it takes no --port, no --data-dir and no --every"
        )
    os.umask(0o077)
    try:
        with _ended_by_sigterm():
            path = Path(directory)
            if is_verifying:
                return _verify(path, as_json=arguments.json)
            return _take(path, arguments)
    except (BackupError, BadBackup, ConfigError) as error:
        print(f"moldau: {error}", file=sys.stderr)
        return 1
    except NotRunningError:
        port = local_port(arguments.port, os.environ)
        print(not_running(runtime_dir(os.environ), port), file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"moldau: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        discard_output()
        return 1
    except KeyboardInterrupt:
        print("\nmoldau: interrupted, nothing was kept", file=sys.stderr)
        return 1
    except Stopped:
        if arguments.every is not None:
            return 0
        print("moldau: stopped, nothing was kept", file=sys.stderr)
        return 1


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    def stop(*_: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one is enough: files are being removed
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# --- taking ---


def _take(directory: Path, arguments: argparse.Namespace) -> int:
    control = _control_of(arguments)

    def take_one(target: Path) -> None:
        begun = time.monotonic()
        manifest = _taken(control, DirectoryTarget(target))
        _report(target, manifest, time.monotonic() - begun, as_json=arguments.json)

    if str(directory) == STANDARD_OUTPUT:
        if sys.stdout.isatty():
            raise BackupError("an archive is not for a terminal: redirect it, or name a directory")
        _taken(control, TarTarget(sys.stdout.buffer))
        return 0
    if arguments.every is None:
        take_one(directory)
        return 0
    _take_every(directory, arguments.every / 1000, arguments.keep or DEFAULT_KEPT, take_one)
    return 0


def _control_of(arguments: argparse.Namespace) -> Path:
    """The control socket of the broker that is meant. Raises BackupError."""
    directory = runtime_dir(os.environ)
    if arguments.data_dir is None:
        return control_socket(directory, local_port(arguments.port, os.environ))
    wanted = os.path.realpath(arguments.data_dir)
    for path in sorted(directory.glob("*.sock")):
        if not path.stem.isdigit():
            continue  # of a worker or a router
        with contextlib.suppress(NotRunningError):
            found = ask_status(path)["store"].get("data_dir")
            if found is not None and os.path.realpath(found) == wanted:
                return path
    raise BackupError(
        f"no broker of user {os.getuid()} runs on the data directory {arguments.data_dir} "
        f"(looked in {directory})"
    )


def _taken(control: Path, target: Target) -> Manifest:
    with ProgressLine("copied") as line:
        return take_backup(control, target, importlib.metadata.version("moldau"), line.begin)


def _take_every(
    directory: Path, every_s: float, keep: int, take_one: Callable[[Path], None]
) -> NoReturn:
    """Take backups until a signal ends it. The first one must succeed."""
    try:
        make_directory(directory)
        lock = take_lock(directory / LOCK, patience_s=0.0)
    except LockedError as error:
        raise BackupError(f"{directory}: process {error.pid} takes backups there") from None
    except OSError as fault:
        raise BackupError(f"{directory}: {reason(fault)}; choose another directory") from None
    try:
        has_one = False
        due = time.monotonic()
        while True:
            names = _tidy(directory, keep)
            try:
                take_one(directory / backup_name(time.time(), names))
            except (BackupError, NotRunningError) as error:
                if not has_one:
                    raise
                print(f"moldau: no backup this time: {error}", file=sys.stderr, flush=True)
            else:
                has_one = True
                _tidy(directory, keep)
            due = max(due + every_s, time.monotonic())
            time.sleep(max(due - time.monotonic(), 0))
    finally:
        _tidy(directory, keep)  # a signal may have come while the last one was taken or removed
        os.close(lock)


def _tidy(directory: Path, keep: int) -> list[str]:
    """Remove what is incomplete, and the oldest beyond `keep`; returns the names of the others."""
    names = [path.name for path in directory.iterdir() if is_backup_name(path.name)]
    complete = [name for name in names if (directory / name / MANIFEST).exists()]
    gone = {*names} - {*complete} | {*superfluous(complete, keep)}
    for name in gone:
        remove_tree(directory / name)
    return [name for name in names if name not in gone]


def _report(directory: Path, manifest: Manifest, seconds: float, *, as_json: bool) -> None:
    mark = manifest.mark
    document = {
        "directory": str(directory.absolute()),
        "taken_at_ms": mark.at_ms,
        "bytes": manifest.bytes,
        "topics": len(mark.topics),
        "partitions": sum(len(topic.partitions) for topic in mark.topics),
        "groups": mark.counted.groups,
        "transactional_ids": mark.counted.transactional_ids,
        "users": mark.counted.users,
        "store_format": mark.format,
        "version": manifest.version,
        "seconds": round(seconds, 3),
    }
    if as_json:
        print_json(document)
    else:
        print(
            f"{directory}: {size_text(manifest.bytes)}, {document['topics']} topics, "
            f"{document['groups']} groups, in {seconds:.1f} s"
        )
    sys.stdout.flush()


# --- verifying ---


def _verify(directory: Path, *, as_json: bool) -> int:
    with ProgressLine("checked") as line:
        found = verify(directory, begin=line.begin, loading=line.waiting("loading it"))
    if as_json:
        print_json({"directory": str(directory.absolute()), "good": found.is_good, "backup": found})
    else:
        _print(directory, found)
    return 0 if found.is_good else 1


def _print(directory: Path, found: Verified) -> None:
    age = duration_text(max(time.time() - found.taken_at_ms / 1000, 0))
    print_facts(
        {
            "backup": str(directory),
            "taken": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found.taken_at_ms / 1000))
            + f", {age} ago",
            "by": f"moldau {found.version}, store format {found.store_format.split()[0]}",
            "size": size_text(found.bytes),
            "groups": f"{found.groups}, {found.committed_offsets} committed offsets",
            "transactional ids": f"{found.transactional_ids}, {found.open_transactions} open",
            "users": found.users,
        }
    )
    if found.topics:
        print()
        print_table(
            ("topic", "partitions", "records", "batches", "open transactions"),
            [
                (
                    topic.name,
                    len(topic.partitions),
                    topic.records,
                    topic.batches,
                    sum(one.open_transactions for one in topic.partitions),
                )
                for topic in found.topics
            ],
        )
    print()
    for problem in found.problems:
        print(f"BAD: {problem}")
    print("the backup is good" if found.is_good else "THE BACKUP IS NOT GOOD")
