"""Gathers the facts for `moldau doctor`: reads the machine, asks the store and a running broker.

Nothing is changed: a port is tried by binding it for a moment, no file is made, and the store is
only read.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import platform
import resource
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moldau.broker.settings.processes import ConfigError, Listener, ServeSettings
from moldau.broker.store.capacity import of_this_machine, smallest
from moldau.ops.client import ClientError, Cluster
from moldau.ops.commands.top import sample
from moldau.ops.doctor.facts import Advertised, Disk, Facts, Load, StoreFacts
from moldau.ops.local_broker import find_local_broker
from moldau.ops.operations.configs import config_values
from moldau.ops.operations.top import overview
from moldau.ops.serve.embedded_store import server_binary
from moldau.ops.serve.exposure import is_loopback
from moldau.ops.serve.external_store import look_at
from moldau.ops.serve.ports import check_ports

PROC, SYS = Path("/proc"), Path("/sys")
SAMPLE_S = 2.0  # how long the rate of a running broker is measured
UNKNOWN = -1


def gather(settings: ServeSettings, env: Mapping[str, str]) -> Facts:
    running = asyncio.run(_running(settings.port))
    return Facts(
        system=platform.system(),
        machine=platform.machine(),
        libc=platform.libc_ver()[0] or ("macOS" if sys.platform == "darwin" else ""),
        python=sys.version_info[:2],
        is_root=os.getuid() == 0,
        open_files=_open_files(),
        overcommit=_number(PROC / "sys/vm/overcommit_memory"),
        swap_total=_swap()[0],
        swap_used=_swap()[1],
        huge_pages=_huge_pages(),
        memory=_memory(settings),
        disk=None if settings.redis is not None else disk_of(settings.data_dir),
        no_embedded_store=_no_embedded_store(),
        ports=() if running is not None else tuple(_ports(settings)),
        is_running=running is not None,
        advertised=tuple(_advertised(each) for each in settings.listening),
        store=None if settings.redis is None else _store(settings.redis),
        store_memory=None if running is None else running["store"]["memory_bytes"],
        store_limit=None if running is None else running["store"]["memory_limit_bytes"],
        load=() if running is None else _load(settings, running),
        has_pipeline=importlib.util.find_spec("pyspark") is not None,
        no_java=_no_java(),
    )


# --- this machine ---


def _open_files() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return hard if hard >= 0 else 1 << 30


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _swap(proc: Path = PROC) -> tuple[int | None, int | None]:
    """Total and used bytes."""
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        said = dict(line.split(":", 1) for line in lines)
        total, free = (int(said[name].split()[0]) << 10 for name in ("SwapTotal", "SwapFree"))
    except (OSError, KeyError, ValueError):
        return None, None
    return total, total - free


def _huge_pages() -> str | None:
    try:
        text = (SYS / "kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return None
    return text.partition("[")[2].partition("]")[0] or None


def _memory(settings: ServeSettings) -> int | None:
    total = smallest(of_this_machine(Path("/nonexistent"))).total
    limit = settings.store_maxmemory if settings.redis is None else 0
    known = [size for size in (total, limit) if size > 0]
    return min(known, default=None)


def disk_of(path: str, mounts: Path = PROC / "self/mounts") -> Disk | None:
    """The disk that holds `path`, or will."""
    place = Path(path)
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return Disk(str(place), _file_system(place.resolve(), mounts), total, free)


def _file_system(place: Path, mounts: Path) -> str:
    """By the longest mount point above `place`; of two on the same one the later counts."""
    kind, longest = "unknown", -1
    with contextlib.suppress(OSError):
        for line in mounts.read_text().splitlines():
            _, point, named, *_ = line.split(" ")
            point = point.replace("\\040", " ")
            if place.is_relative_to(point) and len(point) >= longest:
                kind, longest = named, len(point)
    return kind


def _no_embedded_store() -> str:
    try:
        server_binary()
    except ConfigError as missing:
        return str(missing).partition(":")[0]
    return ""


def _no_java() -> str:
    if importlib.util.find_spec("pyspark") is None:
        return ""
    from moldau.ops.pipeline.errors import PipelineError
    from moldau.ops.pipeline.session import check_java

    try:
        check_java()
    except PipelineError as missing:
        return str(missing)
    return ""


# --- listeners ---


def _ports(settings: ServeSettings) -> list[str]:
    found = []
    address = settings.http_address()
    for each in settings.listening:
        try:
            check_ports(each.host, [*each.ports(settings.workers)])
        except ConfigError as problem:
            found.append(str(problem))
    if address is not None:
        try:
            check_ports(address[0], [address[1]])
        except ConfigError:
            found.append(f"port {address[1]} on {address[0]} is taken (--http)")
    return found


def _advertised(listener: Listener) -> Advertised:
    addresses: tuple[str, ...] = ()
    reason = ""
    try:
        found = socket.getaddrinfo(listener.advertised_host, None, type=socket.SOCK_STREAM)
        addresses = tuple(dict.fromkeys(str(each[4][0]).partition("%")[0] for each in found))
    except OSError as fault:
        reason = fault.strerror or str(fault)
    return Advertised(
        listener.name,
        listener.host,
        listener.advertised_host,
        addresses,
        reason,
        not is_loopback(listener.host),
    )


# --- the store, and a broker that runs ---


def _store(url: str) -> StoreFacts:
    seen = look_at(url)
    return StoreFacts(
        where=seen.where,
        problem=seen.problem,
        name=seen.name,
        warnings=seen.warnings,
        ahead_s=seen.ahead_s,
        info=seen.info,
        config=seen.config,
    )


async def _running(port: int) -> dict[str, Any] | None:
    """What the broker of this user on this port does, if there is one."""
    before = await sample(port)
    if before is None:
        return None
    await asyncio.sleep(SAMPLE_S)
    return overview(before, await sample(port) or before)


def _load(settings: ServeSettings, running: Mapping[str, Any]) -> tuple[Load, ...]:
    topics = {each["topic"]: each for each in running["topics"] if each["bytes_in_per_s"] > 0}
    if not topics:
        return ()
    local = find_local_broker(settings.port, [each.advertised_port for each in settings.listening])
    if local is None:
        return ()
    try:
        with Cluster([("127.0.0.1", settings.port)], local=local) as cluster:
            by_time = config_values(cluster, [*topics], "retention.ms")
            by_size = config_values(cluster, [*topics], "retention.bytes")
    except (ClientError, OSError):
        return ()
    return tuple(
        Load(
            name,
            topic["partitions"],
            topic["bytes_in_per_s"],
            int(by_time.get(name) or UNKNOWN),
            int(by_size.get(name) or UNKNOWN),
        )
        for name, topic in topics.items()
    )
