"""Reads the subject of a certificate, as Java writes it, and its expiry.

It parses only as much DER as that takes. Kafka names a client by the subject in the form of RFC
2253, most specific part first. ACLs written for Kafka contain exactly Java's rendering of it;
OpenSSL's differs in escapes and in attributes that have no keyword.
"""

from __future__ import annotations

from calendar import timegm
from typing import NamedTuple

# The keywords of RFC 2253, the only ones that Java uses; other attributes are written as numbers.
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
# Text types by DER tag; those that should be ASCII have one byte per character.
_TEXT = {
    12: "utf-8",
    19: "latin-1",
    20: "latin-1",
    22: "latin-1",
    27: "latin-1",
    28: "utf-32-be",
    30: "utf-16-be",
}
_ESCAPED = frozenset(',=+<>#;"\\')
_VERSION, _UTC_TIME = 0xA0, 0x17


class Certificate(NamedTuple):
    subject: str  # RFC 2253
    expires_at: int  # seconds since 1970


class _Element(NamedTuple):
    tag: int
    start: int  # of its header
    body: int
    end: int


def read_certificate(der: bytes) -> Certificate:
    """Read a certificate. Raises ValueError for bytes that are not one."""
    try:
        return _read(der)
    except (IndexError, UnicodeDecodeError) as fault:
        raise ValueError(f"not a certificate: {fault}") from None


def _read(der: bytes) -> Certificate:
    whole = _element(der, 0)
    signed = _elements(der, whole)[0]
    fields = [field for field in _elements(der, signed) if field.tag != _VERSION]
    _, _, _, validity, subject = fields[:5]  # after serial number, algorithm and issuer
    _, until = _elements(der, validity)
    return Certificate(_name(der, subject), _time(der, until))


# --- names ---


def _name(der: bytes, name: _Element) -> str:
    parts = [
        "+".join(_attribute(der, attribute) for attribute in _elements(der, part))
        for part in _elements(der, name)
    ]
    return ",".join(reversed(parts))


def _attribute(der: bytes, attribute: _Element) -> str:
    kind, value = _elements(der, attribute)
    number = _oid(der[kind.body : kind.end])
    keyword = _KEYWORDS.get(number)
    if keyword is None or value.tag not in _TEXT:
        return f"{keyword or number}=#{der[value.start : value.end].hex()}"
    return f"{keyword}={_escaped(der[value.body : value.end].decode(_TEXT[value.tag]))}"


def _escaped(text: str) -> str:
    inner = text.strip(" \r")
    lead = len(text) - len(text.lstrip(" \r")) if inner else len(text)
    trail = len(text) - lead - len(inner)
    middle = "".join(
        f"\\{each}" if each in _ESCAPED else "\\00" if each == "\0" else each for each in inner
    )
    spaces = [f"\\{each}" for each in text]
    return "".join(spaces[:lead]) + middle + "".join(spaces[len(text) - trail :])


def _oid(body: bytes) -> str:
    numbers, number = [], 0
    for byte in body:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


# --- DER ---


def _time(der: bytes, element: _Element) -> int:
    text = der[element.body : element.end].decode("ascii")
    if element.tag == _UTC_TIME:  # a two-digit year, from 1950 to 2049
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    numbers = [int(text[:4]), *(int(text[at : at + 2]) for at in range(4, 14, 2))]
    return timegm((*numbers, 0, 0, 0))


def _elements(der: bytes, within: _Element) -> list[_Element]:
    found = []
    at = within.body
    while at < within.end:
        element = _element(der, at)
        if element.end > within.end:
            raise ValueError("not a certificate: an element overruns the one it is in")
        found.append(element)
        at = element.end
    return found


def _element(der: bytes, at: int) -> _Element:
    tag, size, body = der[at], der[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        size = int.from_bytes(der[body : body + count])
        body += count
    if body + size > len(der):
        raise ValueError("not a certificate: it is cut off")
    return _Element(tag, at, body, body + size)
