"""Can this Redis be the store? Checked once, before anything is started on it.

Refused, with the reason: a server that cannot be reached, is too old, is a read-only replica or a
cluster, or evicts keys when it is full. A warning: one that loses everything when it restarts.
No message contains the URL's password.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis

OLDEST = {"redis": (7, 0), "valkey": (8, 0)}
TIMEOUT_S = 5.0


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


def mask(url: str) -> str:
    """The URL for log lines: without passwords, wherever redis-py would read one."""
    parts = urlsplit(url)
    netloc = parts.netloc
    if parts.password is not None:
        netloc = f"{parts.username or ''}:***@{netloc.rpartition('@')[2]}"
    query = urlencode(
        [(key, "***" if "password" in key else value) for key, value in parse_qsl(parts.query)],
        safe="*/:",
    )
    # By hand: urlunsplit turns unix:///path into unix:/path.
    return f"{parts.scheme}://{netloc}{parts.path}" + (f"?{query}" if query else "")


def check_store(url: str) -> StoreInfo:
    """Describe the server at `url`. Raises UnsuitableStore when it cannot be used."""
    where = mask(url)
    try:
        client = redis.Redis.from_url(
            url, socket_connect_timeout=TIMEOUT_S, socket_timeout=TIMEOUT_S
        )
    except ValueError as error:
        raise UnsuitableStore(f"{where}: {error}") from None
    try:
        with client:
            # Only INFO: managed services forbid CONFIG.
            info = client.info()
    except redis.exceptions.RedisError as error:
        raise UnsuitableStore(f"no store at {where}: {_reason(error, url)}") from None
    return judge(where, info)


def judge(where: str, info: Mapping[str, Any]) -> StoreInfo:
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
    if info.get("role") == "slave" and str(info.get("slave_read_only", 1)) != "0":
        raise UnsuitableStore(
            f"{where} is a read-only replica of {info.get('master_host')}:"
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
    return StoreInfo(server, version, aof, maxmemory, policy, replicas, tuple(warnings))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _dotted(server: str) -> str:
    return ".".join(str(part) for part in OLDEST[server])


def _reason(error: Exception, url: str) -> str:
    """The client library's message, with the secrets of the URL masked."""
    words = str(error) or type(error).__name__
    parts = urlsplit(url)
    secrets = [parts.password, *(v for k, v in parse_qsl(parts.query) if "password" in k)]
    for secret in secrets:
        if secret:
            words = words.replace(secret, "***")
    return words
