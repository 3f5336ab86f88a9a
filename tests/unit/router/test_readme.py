"""The router's README names every module of the router."""

from __future__ import annotations

import re
from pathlib import Path

from moldau import router

HERE = Path(router.__file__).parent


def test_the_table_of_files_is_complete() -> None:
    table = (HERE / "README.md").read_text().partition("## The files")[2]
    named = set(re.findall(r"`(\w+\.py)`", table))
    assert named == {path.name for path in HERE.glob("*.py")} - {"__init__.py"}
