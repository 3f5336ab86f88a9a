"""The page of formats knows the formats that the code knows."""

import re

from packaging.version import Version

from moldau.broker.store.format import CURRENT, NEEDS
from moldau.ops.backup import manifest
from tests.support.brokers.running import ROOT

PAGE = (ROOT / "ops" / "docs" / "reference" / "formats.md").read_text()
STORE, BACKUPS = PAGE.split("## The store")[1].split("## Backups")
ROW = re.compile(r"^\| (\d+) \| ([0-9., ]+) \| ([^|]+) \|", re.MULTILINE)


def test_every_format_of_the_store_is_listed() -> None:
    rows = ROW.findall(STORE)
    assert [int(number) for number, _, _ in rows] == list(range(1, CURRENT + 1))
    _, written_by, opened_by = rows[-1]
    assert opened_by.split()[0] == NEEDS
    assert Version(written_by.split(",")[0]) == Version(NEEDS)


def test_versions_follow_one_another() -> None:
    versions = [
        Version(version) for _, written, _ in ROW.findall(STORE) for version in written.split(", ")
    ]
    assert versions == sorted(set(versions))


def test_every_format_of_backups_is_listed() -> None:
    rows = re.findall(r"^\| (\d+) \| ([0-9.]+) \|", BACKUPS, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, manifest.FORMAT + 1))
