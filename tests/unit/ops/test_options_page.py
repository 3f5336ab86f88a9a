"""ops/docs/reference/options.md lists every option of `moldau serve`, by all its names."""

import re

from moldau.broker.settings.options import OPTIONS
from tests.support.brokers.running import ROOT

ROW = re.compile(r"^\| `--([a-z-]+)` \| `([A-Z_]+)` \| `([a-z-]+)` \| \S", re.MULTILINE)


def test_the_table_of_options_is_complete() -> None:
    rows = ROW.findall((ROOT / "ops/docs/reference/options.md").read_text())
    assert rows == [(option.name, option.env, option.name) for option in OPTIONS]
