"""Kafka's notation of listeners: `NAME://host:port`, and NAME:PROTOCOL for their protocols."""

import re
from typing import Final, Literal

import msgspec

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
PROTOCOLS: Final[dict[str, Protocol]] = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
}
WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_ADDRESS = re.compile(
    r"(?P<name>[^:/]+)://(?:\[(?P<six>[^]]*)\]|(?P<host>[^:\[\]]*)):(?P<port>\d+)"
)


class Address(msgspec.Struct, frozen=True):
    """One element of `listeners` or `advertised.listeners`."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def listeners(value: object) -> list[Address]:
    """Parse the addresses to listen on. As in Kafka, no host means every address. Raises
    ValueError."""
    found = _addresses(value)
    return [
        address if address.host else Address(address.name, "0.0.0.0", address.port)
        for address in found
    ]


def advertised_listeners(value: object) -> list[Address]:
    """Parse the addresses to which clients connect instead. Raises ValueError."""
    found = _addresses(value)
    for address in found:
        if not address.host or address.host in WILDCARD_HOSTS:
            raise ValueError(f"{address} is not an address clients can connect to: name a host")
    return found


def protocol_map(value: object) -> dict[str, Protocol]:
    """Parse the protocols of listeners, such as INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL."""
    found: dict[str, Protocol] = {}
    for part in _parts(value):
        name, separator, protocol = (word.strip().upper() for word in part.partition(":"))
        if not separator or not _NAME.fullmatch(name):
            raise ValueError(f"expected NAME:PROTOCOL,… such as EXTERNAL:SASL_SSL, got {part!r}")
        if protocol not in PROTOCOLS:
            raise ValueError(f"{part!r}: the protocols are {', '.join(PROTOCOLS)}")
        if name in found:
            raise ValueError(f"listener {name} is named twice")
        found[name] = PROTOCOLS[protocol]
    return found


def _addresses(value: object) -> list[Address]:
    found: dict[str, Address] = {}
    for part in _parts(value):
        match = _ADDRESS.fullmatch(part)
        if match is None or not _NAME.fullmatch(match["name"]):
            raise ValueError(
                f"expected NAME://host:port,… such as SSL://127.0.0.1:9092, got {part!r}"
            )
        name, port = match["name"].upper(), int(match["port"])
        if not 1 <= port <= 65534:
            raise ValueError(f"{part!r}: expected a port from 1 to 65534")
        if name in found:
            raise ValueError(
                f"listener {name} is named twice: give each a name of its own, and say what it "
                "means with listener-security-protocol-map"
            )
        found[name] = Address(name, match["six"] or match["host"] or "", port)
    return list(found.values())


def _parts(value: object) -> list[str]:
    """Return the elements of a TOML list, or of a comma-separated text."""
    texts = value if isinstance(value, list) else str(value).split(",")
    parts = [str(text).strip() for text in texts]
    if not any(parts) or not all(parts):
        raise ValueError(f"expected a list without empty elements, got {value!r}")
    return parts
