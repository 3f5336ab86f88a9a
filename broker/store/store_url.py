"""The URL of a store: one server, or the sentinels that know which server is the master.

`redis://`, `rediss://` and `unix://` are redis-py's, with its parameters. With Sentinel:

    redis+sentinel://[user:password@]host:port,host:port/master-name[/database][?parameters]

`rediss+sentinel://` uses TLS for sentinels and servers. User and password are those of the servers;
the sentinels get the same, unless `sentinel_username` and `sentinel_password` are given (empty: no
password).

Workers use this instead of redis-py, which takes a tenth of a second to import, at every start.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

Address = tuple[str, int]

SENTINEL_SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
SENTINEL_PORT = 26379
SERVER_PORT = 6379
_FALSE = ("0", "F", "FALSE", "N", "NO")  # the same as redis-py's
_FORM = "redis+sentinel://host:port,host:port/master-name"


@dataclass(frozen=True)
class Credentials:
    username: str | None = None
    password: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The AUTH command; empty: there is no password."""
        if self.password is None:
            return ()
        return ("AUTH", self.username, self.password) if self.username else ("AUTH", self.password)


class StoreUrl:
    """A parsed URL. Raises ValueError, with a text that holds no secrets."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.label = mask(url)  # the URL without secrets, for log lines
        self.sentinels: tuple[Address, ...] = ()
        self.master_name = ""
        own: Credentials | None = None
        if url.partition("://")[0] in SENTINEL_SCHEMES:
            url, own = self._read_sentinels()
        self.server_url = url  # the URL of one server, for redis-py
        self.path: str | None = None  # the path of its unix socket
        self.address: Address = ("localhost", SERVER_PORT)
        self.database = 0
        self._parameters: dict[str, str] = {}
        self.uses_tls = False
        self.credentials = self._read_server()
        self.sentinel_credentials = self.credentials if own is None else own

    def _read_server(self) -> Credentials:
        """Read parameters as redis-py does: they count where the URL says nothing else, `db`
        always."""
        parts = urlsplit(self.server_url)
        for name, value in parse_qsl(parts.query):
            self._parameters.setdefault(name, value)
        if parts.scheme == "unix":
            self.path = unquote(parts.path) or self._parameters.get("path")
        elif parts.scheme in ("redis", "rediss"):
            host = unquote(parts.hostname or "") or self._parameters.get("host", "localhost")
            self.address = (host, parts.port or self._number("port", SERVER_PORT))
            self.uses_tls = parts.scheme == "rediss"
            database = unquote(parts.path).replace("/", "")
            self.database = int(database) if database.isdecimal() else 0
        else:
            raise ValueError("expected redis://, rediss://, unix:// or redis+sentinel://")
        self.database = self._number("db", self.database)
        return Credentials(
            unquote(parts.username or "") or self._parameters.get("username"),
            unquote(parts.password or "") or self._parameters.get("password"),
        )

    def _number(self, name: str, default: int) -> int:
        try:
            return int(self._parameters.get(name, default))
        except ValueError:
            raise ValueError(f"{name} is not a number") from None

    def _read_sentinels(self) -> tuple[str, Credentials | None]:
        """Split off the sentinels: returns a URL of one server, and the sentinels' credentials."""
        parts = urlsplit(self.url)
        secrets, _, hosts = parts.netloc.rpartition("@")
        self.sentinels = tuple(_address(host) for host in hosts.split(",") if host)
        name, _, database = parts.path.strip("/").partition("/")
        self.master_name = unquote(name)
        if not self.sentinels or not self.master_name:
            raise ValueError(f"expected {_FORM}")
        if database and not database.isdecimal():
            raise ValueError(f"database {database!r} is not a number: expected {_FORM}/0")
        own, others = {}, []
        for key, value in parse_qsl(parts.query, keep_blank_values=True):
            if key in ("sentinel_username", "sentinel_password"):
                own[key] = value or None
            else:
                others.append((key, value))
        credentials = None
        if own:
            credentials = Credentials(own.get("sentinel_username"), own.get("sentinel_password"))
        userinfo = f"{secrets}@" if secrets else ""
        query = f"?{urlencode(others)}" if others else ""
        # The host is a placeholder: a sentinel names the real one.
        scheme = SENTINEL_SCHEMES[parts.scheme]
        return f"{scheme}://{userinfo}127.0.0.1/{database}{query}", credentials

    def tls_context(self) -> ssl.SSLContext | None:
        if not self.uses_tls:
            return None
        given = self._parameters
        context = ssl.create_default_context(cafile=given.get("ssl_ca_certs"))
        if certificate := given.get("ssl_certfile"):
            context.load_cert_chain(certificate, given.get("ssl_keyfile"))
        if given.get("ssl_check_hostname", "").upper() in _FALSE:
            context.check_hostname = False
        if given.get("ssl_cert_reqs") in ("none", "CERT_NONE"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def without_secrets(self, text: str) -> str:
        """Mask the secrets of the URL in a library's message."""
        for known in (self.credentials, self.sentinel_credentials):
            if known.password:
                text = text.replace(known.password, "***")
        return text


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
    # Not urlunsplit: it turns unix:///path into unix:/path.
    return f"{parts.scheme}://{netloc}{parts.path}" + (f"?{query}" if query else "")


def _address(text: str) -> Address:
    parts = urlsplit(f"//{text}")
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"{text!r} is not the address of a sentinel: expected {_FORM}") from None
    if not parts.hostname:
        raise ValueError(f"{text!r} is not the address of a sentinel: expected {_FORM}")
    return parts.hostname, SENTINEL_PORT if port is None else port
