"""The documentation for users is true to the code, and builds."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.broker.settings.kafka import BROKER_KEYS, TOPIC_KEYS
from moldau.broker.settings.options import OPTIONS
from moldau.ops.cli import COMMANDS, build_parser
from moldau.ops.docs.tables import MARK, keys_tables
from tests.support.brokers.running import ROOT

DOCS = ROOT / "ops/docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands_of(page: Path) -> list[str]:
    """The lines of its shell snippets that run `moldau`, wherever it is installed."""
    joined = "\n".join(SHELL.findall(page.read_text())).replace("\\\n", " ")
    found = re.findall(r"^(?:.*\| )?(?:sudo )?(?:\S*/)?(moldau .*)$", joined, re.MULTILINE)
    # In the container `moldau`, and with an engine's own word before it.
    found += re.findall(r"exec moldau (moldau .*)$", joined, re.MULTILINE)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_have_options_that_there_are(page: Path) -> None:
    for command in commands_of(page):
        words = shlex.split(re.sub(r" [|<>].*", "", command), comments=True)[1:]
        if "…" in words:
            continue
        chosen = [word for word in words if word in COMMANDS][:1]
        try:
            build_parser(chosen).parse_args(words)
        except SystemExit as ended:
            pytest.fail(f"{command}: exit code {ended.code}")


def test_snippets_are_found() -> None:
    assert len([command for page in PAGES for command in commands_of(page)]) > 40


def test_the_page_of_keys_is_the_table_in_the_code() -> None:
    written = (DOCS / "reference/keys.md").read_text()
    assert written.partition(MARK)[2] == keys_tables(), "run: python ops/docs/tables.py"


def test_limits_are_changed_by_options_and_keys_that_there_are() -> None:
    known = {*BROKER_KEYS, *TOPIC_KEYS, *(f"--{option.name}" for option in OPTIONS)}
    rows = re.findall(
        r"^\| .* \| .* \| (.*) \| .* \|$", (DOCS / "reference/limits.md").read_text(), re.M
    )
    named = {name for row in rows for name in re.findall("`(.+?)`", row)}
    assert len(named) > 10
    assert named <= known


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the extra docs")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        [*command, "-f", str(ROOT / "ops/mkdocs.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for page in DOCS.rglob("*.md"):
        assert (tmp_path / page.relative_to(DOCS)).with_suffix(".html").exists()
    start = (tmp_path / "index.html").read_text()
    for section in ("Start", "How to", "Reference", "How it works"):
        assert section in start
    # Links of READMEs lead to the pages that are made of them.
    assert 'href="../how-it-works/ops-console.html' in (tmp_path / "how-to/watch.html").read_text()
    assert "https://fonts" not in start
