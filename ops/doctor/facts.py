"""What `moldau doctor` knows of a machine, a store and a running broker: values only.

None stands for what could not be found out; the checks leave it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Disk(NamedTuple):
    path: str  # what is on it, or the next directory above that exists
    kind: str  # the file system's name
    total: int
    free: int


class Advertised(NamedTuple):
    """Where clients of a listener are sent."""

    listener: str
    listens_on: str
    host: str
    addresses: tuple[str, ...]  # that the name stands for here; empty: none
    reason: str = ""  # why there are none
    serves_others: bool = False  # it listens on more than loopback


class Load(NamedTuple):
    """What is written to a topic of a running broker."""

    topic: str
    partitions: int
    bytes_per_s: float
    retention_ms: int  # -1: without a limit
    retention_bytes: int  # of a partition; -1: no limit


@dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """An external store, as it answers."""

    where: str  # without its password
    problem: str = ""  # why it cannot be the store
    name: str = ""  # "Valkey 9.1.2"
    warnings: tuple[str, ...] = ()
    ahead_s: float | None = None  # how far its clock is ahead of this machine's
    info: Mapping[str, Any] = field(default_factory=dict)  # INFO
    config: Mapping[str, str] = field(default_factory=dict)  # CONFIG GET, where it is allowed


@dataclass(frozen=True, kw_only=True)
class Facts:
    system: str = "Linux"
    machine: str = "x86_64"
    libc: str = "glibc"
    python: tuple[int, int] = (3, 11)
    is_root: bool = False
    open_files: int | None = None  # the hard limit, up to which processes raise theirs
    overcommit: int | None = None
    swap_total: int | None = None
    swap_used: int | None = None
    huge_pages: str | None = None  # always, madvise, never
    memory: int | None = None  # of this machine or container
    disk: Disk | None = None
    no_embedded_store: str = ""  # why there is none for this platform
    ports: tuple[str, ...] = ()  # those that cannot be had, in words
    is_running: bool = False  # a broker of this user serves on these ports
    advertised: tuple[Advertised, ...] = ()
    store: StoreFacts | None = None  # None: the embedded one
    store_memory: int | None = None  # that the store of the running broker uses
    store_limit: int | None = None  # 0: none
    load: tuple[Load, ...] = ()
    has_pipeline: bool = False
    no_java: str = ""
