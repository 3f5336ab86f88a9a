"""What a release consists of agrees: version, changelog, the store's message, locked packages."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from moldau.broker.store import format as store_format
from moldau.ops.release.sbom import LOCK, Pin, bill, read_lock
from tests.support.brokers.running import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = Version(PROJECT["version"])
# The lock file is for every platform; these are those that the image is made for, and ours.
PLATFORMS = [
    {"python_version": minor, "python_full_version": f"{minor}.0", "sys_platform": "linux"}
    for minor in ("3.11", "3.12", "3.13", "3.14")
]


@pytest.fixture(scope="module")
def pins() -> dict[str, Pin]:
    return {pin.name: pin for pin in read_lock(LOCK.read_text())}


def test_the_changelog_begins_with_this_version() -> None:
    sections = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert all(re.fullmatch(r"[\d.]+ \(\d{4}-\d\d-\d\d\)", each) for each in sections), sections
    versions = [Version(each.split()[0]) for each in sections]
    assert versions[0] == VERSION
    assert all(newer > older for newer, older in pairwise(versions))


def test_the_version_that_a_store_asks_for_is_released() -> None:
    assert Version(store_format.NEEDS) <= VERSION


def test_the_versions_of_python_that_are_named() -> None:
    named = [
        each.rpartition(" ")[2] for each in PROJECT["classifiers"] if ":: Python :: 3." in each
    ]
    assert named == [each["python_version"] for each in PLATFORMS]
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_locked_packages_are_what_the_project_allows(pins: dict[str, Pin]) -> None:
    for text in PROJECT["dependencies"]:
        needed = Requirement(text)
        pin = pins[needed.name]
        assert needed.specifier.contains(pin.version), f"{text}: {pin.version} is locked"
        assert "moldau" in pin.parents


def test_locked_packages_have_digests_and_no_address(pins: dict[str, Pin]) -> None:
    assert all(pin.digests for pin in pins.values())
    assert "://" not in LOCK.read_text()


@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda each: each["python_version"])
def test_every_package_is_there_on_each_python(
    platform: dict[str, str], pins: dict[str, Pin]
) -> None:
    for text in PROJECT["dependencies"]:
        pin = pins[Requirement(text).name]
        if pin.marker is not None:
            needed = Requirement(f"{pin.name}; {pin.marker}")
            assert needed.marker is not None
            assert needed.marker.evaluate(dict(platform))


def test_the_bill_of_materials_lists_what_is_locked(pins: dict[str, Pin]) -> None:
    document = bill(LOCK.read_text(), "1.2.3")
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    listed = {each["name"]: each["version"] for each in document["components"]}
    assert listed == {pin.name: pin.version for pin in pins.values()}
    edges = {each["ref"]: each["dependsOn"] for each in document["dependencies"]}
    names = [re.split("/|@", reference)[1] for reference in edges["pkg:pypi/moldau@1.2.3"]]
    assert names == sorted(Requirement(text).name for text in PROJECT["dependencies"])
    known = {each["bom-ref"] for each in document["components"]} | {"pkg:pypi/moldau@1.2.3"}
    assert set(edges) == known
    assert all(set(below) <= known for below in edges.values())
    assert bill(LOCK.read_text(), "1.2.3") == document


def test_a_line_that_cannot_be_read_is_not_left_out() -> None:
    with pytest.raises(ValueError, match=r"not a line of locked requirements: '-e \.'"):
        read_lock("-e .\n")
