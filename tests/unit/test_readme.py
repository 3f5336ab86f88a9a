"""The README is true to the code where a test can tell."""

from __future__ import annotations

import re
from pathlib import Path

from broker.handlers.dispatch import REPLYING, WAITING
from broker.wire.apis import APIS

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_table_of_apis_is_the_table_in_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+)(?:-(\d+))? \|$", README, re.MULTILINE)
    told = {int(key): (name, int(low), int(high or low)) for key, name, low, high in rows}
    assert told == {api.key: (api.name, api.lowest, api.highest) for api in APIS.values()}


def test_every_advertised_api_has_exactly_one_handler() -> None:
    assert set(REPLYING) | set(WAITING) == set(APIS)
    assert not set(REPLYING) & set(WAITING)


def test_handlers_and_messages_are_named_after_their_api() -> None:
    root = Path(__file__).parents[2] / "broker"
    for api in APIS.values():
        module = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api.name).lower() + ".py"
        assert (root / "handlers" / module).is_file(), module
        assert (root / "wire" / "messages" / module).is_file(), module
