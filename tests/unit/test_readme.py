"""The README is true to the code where a test can tell."""

from __future__ import annotations

import re
from pathlib import Path

from broker.wire.apis import APIS

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_table_of_apis_is_the_table_in_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+)(?:-(\d+))? \|$", README, re.MULTILINE)
    told = {int(key): (name, int(low), int(high or low)) for key, name, low, high in rows}
    assert told == {api.key: (api.name, api.lowest, api.highest) for api in APIS.values()}
