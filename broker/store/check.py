"""Can this Redis be the store? Checked once, before anything is started on it.

Refused, with the reason: a server that cannot be reached, is too old, is a replica or a cluster, or
evicts keys when it is full. A warning: one that loses everything when it restarts, or a master
under Sentinel that cannot fail over without losses. No message contains the URL's password.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import redis

from moldau.broker.store.client import connect
from moldau.broker.store.store_url import StoreUrl, mask

OLDEST = {"redis": (7, 0), "valkey": (8, 0)}


class UnsuitableStore(RuntimeError):
    """The server cannot be the store; the message gives the reason and the remedy."""


class StoreInfo(NamedTuple):
    """What INFO reports of the server."""

    server: str
    version: str
    aof: bool
    maxmemory: int
    maxmemory_policy: str
    replicas: int
    warnings: tuple[str, ...] = ()


def check_store(url: str) -> StoreInfo:
    """Describe the server at `url`. Raises UnsuitableStore when it cannot be used."""
    where = mask(url)
    try:
        known = StoreUrl(url)
        client = connect(url)
    except ValueError as error:
        raise UnsuitableStore(f"{where}: {error}") from None
    try:
        with client:
            # Only INFO: managed services forbid CONFIG.
            info = client.info()
    except redis.exceptions.RedisError as error:
        reason = known.without_secrets(str(error) or type(error).__name__)
        raise UnsuitableStore(f"no store at {where}: {reason}") from None
    return judge(where, info, has_sentinel=bool(known.sentinels))


def judge(where: str, info: Mapping[str, Any], *, has_sentinel: bool = False) -> StoreInfo:
    """Decide by the reply to INFO. Pure, so that any server version can be tested."""
    server = "valkey" if "valkey_version" in info else "redis"
    version = str(info.get("valkey_version") or info.get("redis_version") or "unknown")
    name = f"{server.capitalize()} {version}"
    oldest = OLDEST[server]
    if _numbers(version) < oldest:
        raise UnsuitableStore(
            f"{where} is {name}: too old, "
            f"Moldau needs Redis {_dotted('redis')} or Valkey {_dotted('valkey')} or newer"
        )
    if info.get("role") == "slave":
        raise UnsuitableStore(
            f"{where} is a replica of {info.get('master_host')}:"
            f"{info.get('master_port')}: give the address of the primary"
        )
    mode = info.get("server_mode") or info.get("redis_mode", "standalone")
    if mode != "standalone":
        raise UnsuitableStore(f"{where} runs in {mode} mode: Moldau needs a single server")
    if str(info.get("loading", 0)) != "0":
        raise UnsuitableStore(f"{where} is still loading its data: try again when it is done")
    warnings = []
    policy = str(info.get("maxmemory_policy", "noeviction"))
    maxmemory = int(info.get("maxmemory", 0))
    if policy != "noeviction":
        advice = "set it to noeviction (CONFIG SET maxmemory-policy noeviction, or in its file)"
        if maxmemory > 0:
            raise UnsuitableStore(
                f"{where} evicts keys when it is full (maxmemory-policy {policy}), "
                f"and with them logs: {advice}"
            )
        warnings.append(
            f"{where} has maxmemory-policy {policy} and would lose logs "
            f"if maxmemory were ever set: {advice}"
        )
    aof = bool(int(info.get("aof_enabled", 0)))
    if not aof:
        warnings.append(
            f"{where} keeps no append-only file: what was produced since its last snapshot "
            "is lost when it restarts (CONFIG SET appendonly yes)"
        )
    replicas = int(info.get("connected_slaves", 0))
    if has_sentinel:
        warnings += _failover_warnings(where, info, replicas)
    return StoreInfo(server, version, aof, maxmemory, policy, replicas, tuple(warnings))


def _failover_warnings(where: str, info: Mapping[str, Any], replicas: int) -> list[str]:
    """What a store that fails over needs besides a master."""
    if not replicas:
        return [f"{where} has no replicas: nothing can take over when the master fails"]
    # INFO has this field only where min-replicas-to-write is set.
    if "min_slaves_good_slaves" not in info:
        return [
            f"{where} does not set min-replicas-to-write: a master that is cut off goes on "
            "acknowledging writes (acks=1), which are lost when it returns as a replica "
            "(CONFIG SET min-replicas-to-write 1)"
        ]
    return []


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _dotted(server: str) -> str:
    return ".".join(str(part) for part in OLDEST[server])
