"""The behaviours listed in tests/README.md are those that test names cite."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LISTED = set(re.findall(r"^- \*\*([\d.]+)\*\* ", (TESTS / "README.md").read_text(), re.MULTILINE))


def cited(name: str) -> set[str]:
    """`test_5_6_4_…` is about 5 and 6.4; sections 1 and 5 have no numbers of their own."""
    found = re.match(r"test_((?:(?:[15]|[2346789]_\d+)_)+)", name)
    numbers = re.findall(r"[2346789]_\d+|[15]", found[1]) if found else []
    return {number.replace("_", ".") for number in numbers}


def test_every_number_in_a_test_name_is_listed_and_has_a_test() -> None:
    names = [
        name
        for file in TESTS.rglob("*.py")
        for name in re.findall(r"def (test_\d\w*)", file.read_text())
    ]
    assert set().union(*map(cited, names)) == LISTED


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("test_1_http", {"1"}),
        ("test_5_6_4_in_the_middle_of_a_batch", {"5", "6.4"}),
        ("test_2_16_2_21_a_full_store", {"2.16", "2.21"}),
        ("test_7_24_7_26_many_at_once", {"7.24", "7.26"}),
        ("test_5000_connections", set()),
    ],
)
def test_how_a_name_cites(name: str, numbers: set[str]) -> None:
    assert cited(name) == numbers
