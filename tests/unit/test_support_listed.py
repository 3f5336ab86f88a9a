"""tests/README.md names every module of tests/support, in the row of its room."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_module_is_listed_in_its_room() -> None:
    _, _, section = (TESTS / "README.md").read_text().partition("## Support\n")
    section, _, _ = section.partition("\n## ")
    listed = {
        room: set(re.findall(r"`([a-z_]+)`", text))
        for room, text in re.findall(r"^\| `(\w+)/` \| (.+) \|$", section, re.MULTILINE)
    }
    modules: dict[str, set[str]] = {}
    for path in (TESTS / "support").rglob("*.py"):
        modules.setdefault(path.parent.name, set()).add(path.stem)
    assert listed == modules
