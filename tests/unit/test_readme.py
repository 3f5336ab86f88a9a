"""The READMEs are true to the code where a test can tell."""

from __future__ import annotations

import re
from pathlib import Path

from moldau.broker.wire.apis import APIS

ROOT = Path(__file__).parents[2]
APIS_PAGE = (ROOT / "broker/wire/README.md").read_text()
MAP_PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def test_the_table_of_apis_is_the_table_in_the_code() -> None:
    cells = re.findall(r"\| (\d+) \| ([A-Z]\w+) \| (\d+)(?:-(\d+))? (?=\|)", APIS_PAGE)
    listed = {int(key): (name, int(low), int(high or low)) for key, name, low, high in cells}
    assert listed == {api.key: (api.name, api.lowest, api.highest) for api in APIS.values()}


def test_every_link_into_the_tree_leads_somewhere() -> None:
    pages = [page for page in ROOT.rglob("*.md") if ".venv" not in page.parts]
    assert ROOT / "README.md" in pages
    for page in pages:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def test_the_map_of_the_code_names_rooms_that_exist() -> None:
    _, _, section = MAP_PAGE.partition("## Finding your way\n")
    drawn = section.split("```")[1]
    parent = ""
    for line in drawn.splitlines():
        match = re.match(r"( *)([a-z_]+/) ", line)
        if match is None:
            continue
        indent, room = match.groups()
        parent = parent if indent else room
        path = parent + room if indent else room
        assert (ROOT / path).is_dir(), path
