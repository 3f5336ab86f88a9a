"""An external store, as `serve` looks at it before anything is started."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.broker.errors import StoreFault
from moldau.broker.settings.processes import ConfigError

if TYPE_CHECKING:
    from moldau.broker.store.check import StoreInfo

logger = logging.getLogger("moldau.supervisor")


def check_external(url: str) -> dict[str, Any]:
    """The facts of the server for the status, with warnings logged. Raises ConfigError."""
    # Imported here: redis-py takes a while, and an embedded store starts without it.
    from moldau.broker.store.check import UnsuitableStore, check_store
    from moldau.broker.store.store_url import mask

    try:
        info = check_store(url)
    except UnsuitableStore as error:
        raise ConfigError(str(error)) from None
    for warning in info.warnings:
        logger.warning("%s", warning)
    return facts_of(mask(url), info)


class Seen(NamedTuple):
    """An external store as `moldau doctor` sees it."""

    where: str  # without its password
    problem: str = ""  # why it cannot be served
    name: str = ""
    warnings: tuple[str, ...] = ()
    ahead_s: float | None = None  # how far its clock is ahead of this machine's
    info: Mapping[str, Any] = {}
    config: Mapping[str, str] = {}  # empty where CONFIG is forbidden


def look_at(url: str) -> Seen:
    """The same checks as at the start, and what else the server says. Nothing is written."""
    from moldau.broker.store.blocking import BlockingStore
    from moldau.broker.store.check import UnsuitableStore, check_store
    from moldau.broker.store.store_url import mask

    where = mask(url)
    try:
        info = check_store(url)
        check_store_format(url)
        with BlockingStore(url) as store:
            before = time.time()
            clock = store.clock()
            ahead = clock - (before + time.time()) / 2
            name = f"{info.server.capitalize()} {info.version}"
            return Seen(where, "", name, info.warnings, ahead, store.info(), store.config())
    except (UnsuitableStore, ConfigError, StoreFault) as problem:
        return Seen(where, str(problem))


def facts_of(url: str, info: StoreInfo) -> dict[str, Any]:
    return {
        "url": url,
        "kind": "external",
        "server": info.server,
        "version": info.version,
        "append_only_file": info.aof,
        "maxmemory": info.maxmemory,
        "maxmemory_policy": info.maxmemory_policy,
        "replicas": info.replicas,
    }


def check_store_format(url: str) -> None:
    """A store that a newer version wrote cannot be served. Raises ConfigError."""
    from moldau.broker.store.blocking import BlockingStore
    from moldau.broker.store.format import check_format

    try:
        with BlockingStore(url) as store:
            stored = store.format()
        if stored is not None:
            check_format(stored)
    except StoreFault as fault:
        raise ConfigError(str(fault)) from None
