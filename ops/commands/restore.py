"""`moldau restore`: puts a backup into a new data directory."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path

from moldau.broker.settings.processes import ConfigError
from moldau.ops.backup.files import BackupError
from moldau.ops.backup.manifest import BadBackup
from moldau.ops.backup.restore import Restored, restore
from moldau.ops.command_line import duration_text, positive, print_json, size_text
from moldau.ops.commands.backup_progress import ProgressLine

DESCRIPTION = """\
Put a backup into a new data directory, from which `moldau serve` then starts.
"""

EXAMPLES = """\
examples:
  moldau restore /backup/monday --data-dir ./data
  moldau serve --data-dir ./data

Every log goes on in a new leader epoch, above all offsets that the broker can have given out since
the backup, so that no offset ever names two records: consumers go on by themselves. Groups resume
where they were at the backup, or before. Transactions that were open are aborted. Stop the old
broker first: two brokers with the same records are two clusters with one name.

exit codes: 0 done, 1 not done (the message names the cause), 2 wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.add_argument("directory", metavar="DIR", help="the backup")
    parser.add_argument(
        "--data-dir", required=True, metavar="DIR", help="the new data directory: absent or empty"
    )
    parser.add_argument(
        "--margin", type=positive, metavar="OFFSETS",
        help="how many offsets each log leaves out: more than were given out since the backup. "
        "Default: a million for each second since then, and for a week more",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    data_dir = Path(arguments.data_dir)
    os.umask(0o077)
    try:
        with ProgressLine("copied") as line:
            done = restore(
                Path(arguments.directory),
                data_dir,
                now_ms=time.time_ns() // 1_000_000,
                margin=arguments.margin,
                begin=line.begin,
                loading=line.waiting("loading it"),
            )
    except (BackupError, BadBackup, ConfigError) as error:
        print(f"moldau: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nmoldau: interrupted, nothing was put back", file=sys.stderr)
        return 1
    _report(done, data_dir, as_json=arguments.json)
    return 0


def _report(done: Restored, data_dir: Path, *, as_json: bool) -> None:
    mark = done.manifest.mark
    command = ["moldau", "serve", "--data-dir", str(data_dir)]
    if done.has_security:
        command.append("--secure")
    if as_json:
        print_json(
            {
                "data_dir": str(data_dir.absolute()),
                "taken_at_ms": mark.at_ms,
                "bytes": done.manifest.bytes,
                "topics": len(mark.topics),
                "groups": mark.counted.groups,
                "logs": done.logs,
                "margin": done.margin,
                "next": command,
            }
        )
        return
    age = duration_text(max(time.time() - mark.at_ms / 1000, 0))
    print(
        f"{data_dir}: {size_text(done.manifest.bytes)}, {len(mark.topics)} topics, "
        f"{mark.counted.groups} groups, as they were {age} ago"
    )
    print(f"{done.logs} logs go on {done.margin:,} offsets above what the backup knows")
    print(f"start it with: {shlex.join(command)}")
