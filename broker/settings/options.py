"""The options of `moldau serve`: one table of all, and the parsing of each value.

A value is text (from a flag or the environment) or already typed (from TOML). A parser returns the
final value, or raises ValueError that says what was expected; the caller adds where it was set.
"""

import os
import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

from moldau.broker.settings.addresses import (
    WILDCARD_HOSTS,
    advertised_listeners,
    listeners,
    protocol_map,
)

ENV_PREFIX = "MOLDAU_"
HTTPS = "https://"
MIB = 1024 * 1024
LOG_LEVELS = ("debug", "info", "warning", "error")


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("expected some text")
    return value.strip()


def _integer(low: int, high: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        try:
            if isinstance(value, bool) or not isinstance(value, int | str):
                raise TypeError
            number = int(value)
        except (TypeError, ValueError):
            raise ValueError(f"expected a whole number, got {value!r}") from None
        if not low <= number <= high:
            raise ValueError(f"expected a number from {low} to {high}, got {number}")
        return number

    return parse


_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)


def _size(low: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        match = _SIZE.fullmatch(str(value).strip()) if isinstance(value, int | str) else None
        if match is None or isinstance(value, bool):
            raise ValueError(f'expected bytes such as 1048576, "512mb" or "4gb", got {value!r}')
        size = int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2].lower()]
        if size < low:
            raise ValueError(f"expected at least {low} bytes, got {size}")
        return size

    return parse


def _choice(*choices: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        # A bare `no` is a syntax error in TOML; users write `false` instead.
        text = "no" if value is False else str(value).strip().lower()
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}, got {value!r}")
        return text

    return parse


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in {"true", "yes", "on", "1"}:
        return True
    if text in {"false", "no", "off", "0"}:
        return False
    raise ValueError(f"expected true or false, got {value!r}")


_STORE_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")


def _redis_url(value: object) -> str:
    url = _text(value)
    if url.partition("://")[0] not in _STORE_SCHEMES:
        # The value is not repeated, since it may contain a password.
        raise ValueError(
            "expected redis://host:port, rediss://host:port, unix:///path or "
            "redis+sentinel://host:port,host:port/master-name"
        )
    return url


def _advertised_host(value: object) -> str:
    host = _text(value)
    if host in WILDCARD_HOSTS:
        raise ValueError(f"{host} is not an address clients can connect to: name this machine")
    return host


def _http(value: object) -> str:
    """Parse `off` or HOST:PORT, prefixed with https:// for TLS; an IPv6 address is in brackets."""
    text = "off" if value is False else _text(value)
    if text.lower() == "off":
        return "off"
    text = text.removeprefix("http://")
    host, colon, port = text.removeprefix(HTTPS).rpartition(":")
    if not colon or not host or not port.isdigit() or not 1 <= int(port) <= 65535 or "/" in host:
        raise ValueError(
            f"expected HOST:PORT, such as 127.0.0.1:8092, https://HOST:PORT, or off, got {value!r}"
        )
    return text


def _console_url(value: object) -> str:
    text = _text(value).removesuffix("/")
    parts = urlsplit(text)
    is_address = bool(parts.hostname) and text == f"{parts.scheme}://{parts.netloc}"
    is_local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1")
    if not is_address or not (text.startswith(HTTPS) or is_local):
        raise ValueError(
            f"expected https://HOST or https://HOST:PORT, without a path, got {value!r}"
            " (or http://localhost:PORT with --insecure)"
        )
    return text


def _console(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return _choice("on", "read-only", "off")(value)


def _directory(value: object) -> str:
    return os.path.abspath(os.path.expanduser(_text(value)))


class Option(NamedTuple):
    """One option of `serve`, wherever it is set."""

    name: str
    parse: Callable[[object], object]
    metavar: str
    help: str
    group: str

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    @property
    def is_switch(self) -> bool:
        """True if its name alone turns it on, on the command line."""
        return self.parse is _boolean

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.field.upper()


_LISTEN, _STORE, _TUNING = "listening", "store", "tuning"

OPTIONS: tuple[Option, ...] = (
    Option("host", _text, "HOST", "address to listen on (127.0.0.1)", _LISTEN),
    Option(
        "port",
        _integer(1, 65534),
        "PORT",
        "bootstrap port (9092); worker i listens on PORT+1+i",
        _LISTEN,
    ),
    Option("workers", _integer(1, 256), "N", "worker processes (2, on one core 1)", _LISTEN),
    Option(
        "routers",
        _integer(1, 64),
        "N",
        "router processes (1), which share PORT",
        _LISTEN,
    ),
    Option(
        "advertise",
        _choice("workers", "router"),
        "workers|router",
        "what is advertised to clients: every worker's own port (workers, the default), "
        "or the bootstrap port only (router), for networks that let one port through",
        _LISTEN,
    ),
    Option(
        "advertised-host",
        _advertised_host,
        "HOST",
        "host name or address advertised to clients (the host; this machine's name for 0.0.0.0)",
        _LISTEN,
    ),
    Option(
        "http",
        _http,
        "HOST:PORT|off",
        "where metrics, health and the console are served (127.0.0.1, PORT-1000); with "
        "https://HOST:PORT over TLS, with the certificate of a listener",
        _LISTEN,
    ),
    Option(
        "console",
        _console,
        "on|read-only|off",
        "the console there: pages that show everything and change nothing with read-only (on)",
        _LISTEN,
    ),
    Option(
        "console-url",
        _console_url,
        "https://HOST",
        "where browsers reach the console through a proxy that ends TLS; users log in to it "
        "(http://localhost:PORT, with --insecure: through a port of a container, without a login)",
        _LISTEN,
    ),
    Option(
        "listeners",
        listeners,
        "NAME://HOST:PORT,…",
        "Kafka's listeners, instead of --host and --port: SSL://0.0.0.0:9092, each with a block of "
        "ports, its worker i at its PORT+1+i",
        _LISTEN,
    ),
    Option(
        "advertised-listeners",
        advertised_listeners,
        "NAME://HOST:PORT,…",
        "where clients of a listener connect instead, as a block of ports too",
        _LISTEN,
    ),
    Option(
        "listener-security-protocol-map",
        protocol_map,
        "NAME:PROTOCOL,…",
        "what names of listeners mean that are not PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
        _LISTEN,
    ),
    Option(
        "secure",
        _boolean,
        "true|false",
        "TLS and logins (SASL_SSL) on the port, ACLs and a user admin; what clients need is "
        "written to DATA_DIR/security (false)",
        _LISTEN,
    ),
    Option(
        "insecure",
        _boolean,
        "true|false",
        "serve other machines without authentication (false)",
        _LISTEN,
    ),
    Option(
        "redis",
        _redis_url,
        "URL",
        "use this Redis 7.0+ or Valkey 8.0+ (redis://, rediss://, unix://, redis+sentinel://) "
        "instead of the embedded store",
        _STORE,
    ),
    Option(
        "standby",
        _boolean,
        "true|false",
        "with --redis: wait while another broker serves the database, with everything loaded, and "
        "take over when it ends (false)",
        _STORE,
    ),
    Option(
        "data-dir",
        _directory,
        "DIR",
        "where the embedded store keeps its data ($XDG_DATA_HOME/moldau, ~/.local/share/moldau)",
        _STORE,
    ),
    Option(
        "store-fsync",
        _choice("everysec", "always", "no"),
        "WHEN",
        "when the embedded store forces writes to disk: everysec (default), always, no",
        _STORE,
    ),
    Option(
        "store-maxmemory",
        _size(0),
        "SIZE",
        "memory limit of the embedded store, such as 4gb (0: none); "
        "when it is full, producers get a retriable error, nothing is evicted",
        _STORE,
    ),
    Option(
        "store-min-free",
        _size(0),
        "SIZE",
        "free space on the embedded store's disk below which producers get a retriable error "
        "(256mb, a tenth of a disk that is smaller than 2.5 GB)",
        _STORE,
    ),
    Option(
        "spare-process",
        _boolean,
        "true|false",
        "keep a process ready to replace a worker or router that dies (true)",
        _TUNING,
    ),
    Option(
        "exit-with-parent",
        _boolean,
        "true|false",
        "stop when standard input ends: for programs that start a broker (false)",
        _TUNING,
    ),
    Option(
        "max-request-bytes",
        _size(1024),
        "SIZE",
        "largest request a client may send (100mb)",
        _TUNING,
    ),
    Option(
        "tail-cache-bytes", _size(0), "SIZE", "newest log bytes a worker keeps (128mb)", _TUNING
    ),
    Option(
        "inflight-bytes", _size(MIB), "SIZE", "requests a worker holds at once (256mb)", _TUNING
    ),
    Option(
        "connection-inflight-bytes",
        _size(MIB),
        "SIZE",
        "requests and replies held for one connection (32mb)",
        _TUNING,
    ),
    Option(
        "snapshot-entries",
        _integer(1, 1_000_000),
        "N",
        "log entries between snapshots of a partition's state (1000)",
        _TUNING,
    ),
    Option(
        "log-level", _choice(*LOG_LEVELS), "LEVEL", "debug, info (default), warning, error", _TUNING
    ),
    Option("log-json", _boolean, "true|false", "log lines as JSON (false)", _TUNING),
)
