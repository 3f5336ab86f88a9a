"""The table of keys in the store's README names every key the code uses."""

import re
from pathlib import Path

import pytest
from redis.crc import key_slot

from moldau.broker import store
from moldau.broker.store import keys

README = (Path(store.__file__).parent / "README.md").read_text()
LISTED = set(re.findall(r"^\| `(\{?moldau:[^`]+)` \|", README, re.MULTILINE))


def test_every_key_is_listed() -> None:
    log = keys.stream("<topic>", 0, 7)
    used = {
        value
        for name, value in vars(keys).items()
        if name.isupper() and isinstance(value, bytes) and value != keys.OWN
    }
    used |= {log, keys.state(log), keys.times(log), keys.marks(log), keys.cleaner(log)}
    used |= {*keys.generation(log, 8), keys.group(8, "<id>"), keys.offsets(8, "<id>")}
    used |= {keys.slot(8), keys.groups(8), keys.wake(9), keys.known_ends(b"<store id>")}
    used |= {keys.aborted(log), keys.transactions(8), keys.transaction(8, "<id>")}
    used |= {keys.shares(8, "<id>"), keys.share(8, "<id>", bytes(16), 7, 6)}
    named = {
        key.decode()
        .replace(":7", ":<partition>")
        .replace(":8", ":<n>")
        .replace(":9", ":<worker>")
        .replace(bytes(16).hex(), "<topic id>")
        .replace(":6", ":<term>")
        for key in used
    }
    assert named == LISTED


def test_every_function_is_listed() -> None:
    library = (Path(store.__file__).parent / "native_library.lua").read_text()
    assert set(re.findall(r"'(moldau_\w+)'", library)) == set(re.findall(r"`(moldau_\w+)`", README))


def test_no_topic_meets_our_own_keys() -> None:
    for name in keys.RESERVED:
        assert keys.stream(name, 0, 0) == f"moldau:{name}~0:0".encode()
    assert keys.stream("orders", 0, 3) == b"moldau:orders:3"
    assert keys.stream("orders", 2, 3) == b"moldau:orders~2:3"


def test_a_group_id_cannot_reach_another_groups_keys() -> None:
    assert keys.group(7, "a:offsets") != keys.offsets(7, "a")
    assert len({keys.group(7, name) for name in ("a:b", "a%3Ab", "a%253Ab")}) == 3
    for name in ("a:b", "a%3Ab", "a%253Ab", "%", ":%3A:"):
        assert keys.unescaped(keys.escaped(name)) == name


def slot(key: bytes) -> int:
    """The slot of a key, as a Redis Cluster computes it."""
    return int(key_slot(key))


@pytest.mark.parametrize("incarnation", [0, 3])
def test_the_keys_of_a_log_are_in_one_slot(incarnation: int) -> None:
    log = keys.stream("orders", incarnation, 12)
    names = [keys.state(log), keys.times(log), keys.marks(log), keys.cleaner(log)]
    names.append(keys.aborted(log))
    names += keys.generation(log, 4)
    assert keys.state(log) == b"{%b}:state" % log
    assert {slot(name) for name in names} == {slot(log)}
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "native", [b"sensors:raw", b"{app}:raw", b"a{b}c{d}", b"a}{b}", b"a{b", b"{", b"moldau:t:0"]
)
def test_the_keys_beside_a_native_stream_are_in_its_slot(native: bytes) -> None:
    logs = [keys.stream("t", 2, 0), keys.stream("t", 2, 1), keys.stream("t", 0, 0)]
    names = {name(keys.beside(native, log)) for log in logs for name in (keys.state, keys.marks)}
    assert {slot(name) for name in names} == {slot(native)}
    assert len(names) == 6


@pytest.mark.parametrize("native", [b"a}b", b"{}x", b"}{", b"a{}b}", b"}"])
def test_a_key_that_cannot_be_a_tag(native: bytes) -> None:
    assert keys.hash_tag(native) is None
    # A topic of an older version keeps working: a single server does not care.
    assert keys.state(keys.beside(native, b"moldau:t:0")) == b"{moldau:t:0}:state"


def test_the_keys_of_a_group_are_in_the_slot_of_its_owner() -> None:
    names = [keys.groups(7), keys.group(7, "a{b}"), keys.offsets(7, "a{b}")]
    assert {slot(name) for name in names} == {slot(keys.slot(7))}
