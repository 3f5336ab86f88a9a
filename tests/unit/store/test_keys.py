"""The table of keys in the store's README names every key the code uses."""

import re
from pathlib import Path

from broker import store
from broker.store import keys

README = (Path(store.__file__).parent / "README.md").read_text()
LISTED = set(re.findall(r"^\| `(moldau:[^`]+)` \|", README, re.MULTILINE))


def test_every_key_is_listed() -> None:
    log = keys.stream("<topic>", 0, 7)
    used = {
        value
        for name, value in vars(keys).items()
        if name.isupper() and isinstance(value, bytes) and value != keys.OWN
    }
    used |= {log, keys.state(log), keys.times(log), keys.marks(log), keys.cleaner(log)}
    used |= {*keys.generation(log, 8), keys.group("<id>"), keys.offsets("<id>")}
    used |= {keys.slot(8), keys.wake(9)}
    named = {
        key.decode().replace(":7", ":<partition>").replace(":8", ":<n>").replace(":9", ":<worker>")
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
    assert keys.group("a:offsets") != keys.offsets("a")
    assert len({keys.group(name) for name in ("a:b", "a%3Ab", "a%253Ab")}) == 3
