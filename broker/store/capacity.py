"""How much the store can hold, and how much is left: the smallest of all known limits.

Everything is kept in the server's memory. The memory of an embedded store is also bounded by the
machine or container it runs in, and everything in it is on the disk of its data directory too. Of
another machine's memory only INFO is known, and nothing of its disk.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


class Capacity(NamedTuple):
    """Bytes in all, and bytes that are left; -1: not known."""

    total: int
    usable: int


class _Hierarchy(NamedTuple):
    """The files of a cgroup version with the limit, the use and what could be reclaimed."""

    limit: str
    used: str
    reclaimable: str  # a word of memory.stat


_VERSION_1 = _Hierarchy("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _Hierarchy("memory.max", "memory.current", "inactive_file")


def smallest(known: list[Capacity]) -> Capacity:
    """Combine capacities: the smallest counts."""
    if not known:
        return Capacity(-1, -1)
    total, usable = min(each.total for each in known), min(each.usable for each in known)
    return Capacity(total, min(max(usable, 0), total))


def of_server(info: Mapping[bytes, bytes]) -> list[Capacity]:
    """The capacity of a server by INFO memory: `maxmemory`, or the memory of its machine."""
    limit = int(info.get(b"maxmemory", 0)) or int(info.get(b"total_system_memory", 0))
    return [Capacity(limit, limit - int(info.get(b"used_memory", 0)))] if limit else []


def of_this_machine(data: Path, proc: Path = PROC, cgroups: Path = CGROUPS) -> list[Capacity]:
    """The memory of this machine and container, and the disk that holds `data`."""
    found = [*_memory(proc), *_control_groups(proc, cgroups)]
    with contextlib.suppress(OSError):
        disk = os.statvfs(data)
        found.append(Capacity(disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize))
    return found


def _memory(proc: Path) -> Iterator[Capacity]:
    with contextlib.suppress(OSError, KeyError, ValueError):
        said = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
        total, available = (int(said[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
        yield Capacity(total * 1024, available * 1024)


def _control_groups(proc: Path, cgroups: Path) -> Iterator[Capacity]:
    """Memory limits of this process's cgroup and of all its parents: any can be the lowest."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            root, files = cgroups / "memory", _VERSION_1
        elif not controllers:
            root, files = cgroups, _VERSION_2
        else:
            continue
        inner = root / path.lstrip("/")
        for group in (inner, *inner.parents):
            yield from _control_group(group, files)
            if group == root:
                break


def _control_group(group: Path, files: _Hierarchy) -> Iterator[Capacity]:
    with contextlib.suppress(
        OSError, ValueError
    ):  # without a limit the file says "max", or does not exist
        limit = int((group / files.limit).read_text())
        used = int((group / files.used).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        yield Capacity(limit, limit - used + int(stat.get(files.reclaimable, 0)))
