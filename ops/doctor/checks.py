"""The checks of `moldau doctor`: facts and settings in, findings out. Pure.

A fault keeps the broker from starting, from being reached, or from keeping what it acknowledged. A
warning is what costs speed or safety. Each names its cause and a remedy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from enum import StrEnum

import msgspec

from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.settings.processes import UNLIMITED, ServeSettings
from moldau.ops.doctor.facts import Facts

MIB, GIB = 1 << 20, 1 << 30
FEW_FILES, VERY_FEW_FILES = 4096, 1024
RESERVED_FILES = 512
NEWEST_PYTHON = (3, 14)
NETWORK_DISKS = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "afs"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone"),
    )
)
MEMORY_DISKS = frozenset(("tmpfs", "ramfs"))
CLOCK_WARNING_S, CLOCK_FAULT_S = 2.0, 60.0
NAME_IT = "name this machine as clients know it with --advertised-host (or --advertised-listeners)"
OVERHEAD = 1.1  # memory of the store per byte of records in batches (how-to/sizing.md)
FULL, NEARLY_FULL = 1.0, 0.7


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


class Finding(msgspec.Struct, frozen=True):
    check: str
    level: Level
    finding: str
    remedy: str = ""


Found = Iterator[Finding]


def findings(facts: Facts, settings: ServeSettings) -> list[Finding]:
    return [found for check in CHECKS for found in check(facts, settings)]


def faults(found: list[Finding]) -> int:
    return sum(each.level is Level.FAULT for each in found)


def _ok(check: str, finding: str) -> Finding:
    return Finding(check, Level.OK, finding)


def _warning(check: str, finding: str, remedy: str) -> Finding:
    return Finding(check, Level.WARNING, finding, remedy)


def _fault(check: str, finding: str, remedy: str) -> Finding:
    return Finding(check, Level.FAULT, finding, remedy)


# --- the machine ---


def platform(facts: Facts, settings: ServeSettings) -> Found:
    name = "platform"
    python = ".".join(map(str, facts.python))
    what = f"{facts.system} {facts.machine}, {facts.libc or 'no glibc'}, Python {python}"
    if facts.no_embedded_store and settings.redis is None:
        yield _fault(
            name,
            f"{what}: {facts.no_embedded_store}",
            "use a Redis or Valkey of your own: --redis redis://HOST:6379",
        )
    elif facts.python > NEWEST_PYTHON:
        yield _warning(name, f"{what}: not tried with this Python", "use Python 3.11 to 3.14")
    else:
        yield _ok(name, what)


def user(facts: Facts, settings: ServeSettings) -> Found:
    if facts.is_root and any(each.serves_others for each in facts.advertised):
        yield _warning(
            "user",
            "it would serve other machines as root",
            "run it as a user of its own, as the unit moldau.service does",
        )


def open_files(facts: Facts, settings: ServeSettings) -> Found:
    limit = facts.open_files
    if limit is None:
        return
    name, remedy = "open files", "raise it: ulimit -n 65536, or LimitNOFILE= in the unit"
    left = max(limit - min(max(limit // 4, 64), RESERVED_FILES), 1)
    wanted = BrokerConfig(settings.broker).get_int("max.connections")
    text = f"limit {limit}, which leaves {left} connections for each process"
    if wanted < UNLIMITED and wanted > left:
        yield _fault(name, f"{text}; max.connections is {wanted}", f"{remedy}, or lower it")
    elif limit < VERY_FEW_FILES:
        yield _fault(name, text, remedy)
    elif limit < FEW_FILES:
        yield _warning(name, text, remedy)
    else:
        yield _ok(name, text)


def overcommit(facts: Facts, settings: ServeSettings) -> Found:
    """The embedded store forks to rewrite its file; the copy needs little, but may be refused."""
    name, value = "overcommit", facts.overcommit
    if value is None or settings.redis is not None:
        return
    remedy = "sysctl vm.overcommit_memory=1, and a file in /etc/sysctl.d"
    size = max(settings.store_maxmemory, facts.store_memory or 0)
    is_large = size == 0 or facts.memory is None or size > facts.memory // 4
    text = f"vm.overcommit_memory={value}"
    if value == 1:
        yield _ok(name, text)
    elif value == 2:
        yield _fault(name, f"{text}: the kernel refuses the copy that rewrites the file", remedy)
    elif is_large:
        what = "has no limit (--store-maxmemory)" if not size else f"may have {_size(size)}"
        yield _warning(
            name, f"{text}, and the store {what}: rewriting its file may be refused", remedy
        )
    else:
        yield _ok(name, f"{text}, and the store is small")


def swap(facts: Facts, settings: ServeSettings) -> Found:
    if facts.swap_total is None or settings.redis is not None:
        return
    remedy = "swapoff -a, or sysctl vm.swappiness=1; limit the store with --store-maxmemory"
    used = facts.swap_used or 0
    if not facts.swap_total:
        yield _ok("swap", "none")
    elif used > 64 * MIB:
        yield _warning(
            "swap", f"{_size(used)} of {_size(facts.swap_total)} in use: logs may be there", remedy
        )
    else:
        yield _ok("swap", f"{_size(facts.swap_total)}, not in use")


def huge_pages(facts: Facts, settings: ServeSettings) -> Found:
    if facts.huge_pages is None or settings.redis is not None:
        return
    if facts.huge_pages == "always":
        yield _warning(
            "huge pages",
            "transparent huge pages are always used: while the file is rewritten, each write "
            "copies 2 MB",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, at each boot",
        )
    else:
        yield _ok("huge pages", facts.huge_pages)


def disk(facts: Facts, settings: ServeSettings) -> Found:
    found = facts.disk
    if found is None or settings.redis is not None:
        return
    name, text = "disk", f"{_size(found.free)} of {_size(found.total)} free ({found.kind})"
    move = "choose a directory on a local disk with --data-dir"
    wanted = settings.store_min_free
    least = min(256 * MIB, found.total // 10) if wanted is None else wanted
    if found.kind in NETWORK_DISKS:
        yield _fault(
            name, f"{found.path} is on a network file system ({found.kind}): what it syncs may be "
            "lost, and a lock may be held twice", move,
        )  # fmt: skip
        return
    if found.kind in MEMORY_DISKS:
        yield _warning(
            name, f"{found.path} is in memory ({found.kind}): gone after a restart", move
        )
    if found.free < least:
        yield _fault(name, f"{text}: producers are refused below {_size(least)}", "make room")
    elif settings.store_maxmemory and found.free < 2 * settings.store_maxmemory:
        yield _warning(
            name, f"{text}; a store of {_size(settings.store_maxmemory)} needs twice as much while "
            "its file is rewritten", "make room, or lower --store-maxmemory",
        )  # fmt: skip
    else:
        yield _ok(name, text)


# --- where it listens, and where clients are sent ---


def ports(facts: Facts, settings: ServeSettings) -> Found:
    if facts.is_running:
        yield _ok("ports", f"a broker of this user serves on port {settings.port}")
        return
    for problem in facts.ports:
        yield _fault("ports", problem, "stop what listens there, or choose other ports")
    if not facts.ports:
        blocks = [each.ports(settings.workers) for each in settings.listening]
        yield _ok("ports", "free: " + ", ".join(f"{each[0]}-{each[-1]}" for each in blocks))


def advertised(facts: Facts, settings: ServeSettings) -> Found:
    for each in facts.advertised:
        name = f"advertised {each.listener}"
        loopback = [one for one in each.addresses if ipaddress.ip_address(one).is_loopback]
        stands_for = ", ".join(each.addresses)
        if not each.addresses:
            yield _fault(
                name,
                f"{each.host} does not resolve: {each.reason}",
                NAME_IT,
            )
        elif each.serves_others and loopback:
            yield _fault(
                name,
                f"clients on other machines are sent to {each.host} ({stands_for}), which is their "
                "own machine",
                NAME_IT,
            )
        elif not each.serves_others and not loopback:
            yield _warning(
                name,
                f"clients are sent to {each.host} ({stands_for}), but it listens on "
                f"{each.listens_on} only",
                "listen there as well (--host 0.0.0.0), unless something forwards these ports",
            )
        else:
            yield _ok(name, f"{each.host} ({stands_for})")


# --- the store ---


def store(facts: Facts, settings: ServeSettings) -> Found:
    found = facts.store
    if found is None:
        return
    if found.problem:
        yield _fault("store", found.problem, "give another server with --redis, or correct it")
        return
    replicas = int(found.info.get("connected_slaves", 0))
    yield _ok("store", f"{found.name} at {found.where}, replicas: {replicas}")
    for warning in found.warnings:
        yield _warning("store", warning, "see Your own Redis in the manual")
    fsync = found.config.get("appendfsync", "")
    if int(found.info.get("aof_enabled", 0)) and fsync in ("everysec", "no") and not replicas:
        yield _warning(
            "store",
            f"appendfsync {fsync} and no replica: killing the server may lose acknowledged writes",
            "CONFIG SET appendfsync always, or add a replica and produce with acks=all",
        )
    if settings.standby and replicas and found.config.get("min-replicas-to-write") == "0":
        yield _warning(
            "store",
            "min-replicas-to-write 0: a master that is cut off goes on, and two hosts may serve",
            "CONFIG SET min-replicas-to-write 1 and min-replicas-max-lag 2, on all servers",
        )
    if found.config.get("save", "").strip() and int(found.info.get("aof_enabled", 0)):
        yield _warning(
            "store",
            f"it writes snapshots too (save {found.config['save']}): a fork and a whole copy each "
            "time",
            "CONFIG SET save '': the append-only file is enough",
        )


def clock(facts: Facts, settings: ServeSettings) -> Found:
    ahead = None if facts.store is None else facts.store.ahead_s
    if ahead is None:
        return
    text = f"the store's is {abs(ahead):.1f} s {'ahead' if ahead > 0 else 'behind'}"
    remedy = "let both machines set their clocks by NTP (chrony, systemd-timesyncd)"
    if abs(ahead) >= CLOCK_FAULT_S:
        yield _fault("clock", f"{text}: retention, timeouts and tokens go by it", remedy)
    elif abs(ahead) >= CLOCK_WARNING_S:
        yield _warning("clock", text, remedy)
    else:
        yield _ok("clock", "the same as the store's")


def memory(facts: Facts, settings: ServeSettings) -> Found:
    """What the topics of a running broker will need, at the rate of just now."""
    if not facts.load:
        return
    name = "memory"
    limit = facts.store_limit or (facts.memory if settings.redis is None else None)
    wanted = 0.0
    for each in facts.load:
        bounds = []
        if each.retention_ms >= 0:
            bounds.append(each.bytes_per_s * each.retention_ms / 1000)
        if each.retention_bytes >= 0:
            bounds.append(float(each.retention_bytes * each.partitions))
        if not bounds and each.bytes_per_s > 0:
            yield _warning(
                name,
                f"topic {each.topic} grows by {_size(round(each.bytes_per_s * 86400))} a day, and "
                "nothing is ever removed",
                "set retention.ms or retention.bytes, or cleanup.policy=compact",
            )
        wanted += min(bounds, default=0.0)
    wanted *= OVERHEAD
    text = f"at the rate of just now topics will need {_size(round(wanted))}"
    if limit is None:
        yield _ok(name, text)
        return
    text += f" of {_size(limit)}"
    remedy = "lower retention.ms or retention.bytes, or give the store more memory"
    if wanted > FULL * limit:
        yield _fault(name, f"{text}: producers will be refused", remedy)
    elif wanted > NEARLY_FULL * limit:
        yield _warning(name, text, remedy)
    else:
        yield _ok(name, text)


def pipeline(facts: Facts, settings: ServeSettings) -> Found:
    if not facts.has_pipeline:
        return
    if facts.no_java:
        yield _warning("java", facts.no_java, "install it if you use moldau pipeline")
    else:
        yield _ok("java", "Java for the pipeline is there")


CHECKS: tuple[Callable[[Facts, ServeSettings], Found], ...] = (
    platform,
    user,
    open_files,
    overcommit,
    swap,
    huge_pages,
    disk,
    ports,
    advertised,
    store,
    clock,
    memory,
    pipeline,
)


def _size(size: int) -> str:
    for unit, name in ((1 << 40, "TB"), (GIB, "GB"), (MIB, "MB"), (1 << 10, "KB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
