"""How `ops/test` runs pytest: what failed is run once more, alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.brokers.running import ROOT

SCRIPT = f"""
set -eu
say() {{ printf '%s\\n' "$*"; }}
. {ROOT}/ops/pytest_twice.sh
code=0
pytest_twice "$@" || code=$?
echo "alone: $alone"
exit "$code"
"""
UNLUCKY = """
def test_{name}(request):
    assert request.config.getoption("numprocesses") in (0, None), "not alone"
    assert not hasattr(request.config, "workerinput"), "not alone"
"""
GOOD = "def test_good(): pass\n"
BAD = "def test_bad(): assert False\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q --strict-markers\n")
    (tmp_path / "test_good.py").write_text(GOOD)
    return tmp_path


def run(tree: Path) -> tuple[int, str]:
    """The exit code, and everything that was printed."""
    path = f"{sys.prefix}/bin:{os.environ.get('PATH', os.defpath)}"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env |= {"PATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # or it takes three times as long
    done = subprocess.run(
        ["sh", "-c", SCRIPT, "sh", "-p", "xdist", "-n", "1"],
        cwd=tree, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    assert not (tree / ".pytest_cache").exists()
    return done.returncode, done.stdout


def test_everything_passes(tree: Path) -> None:
    code, said = run(tree)
    assert code == 0
    assert "once more" not in said
    assert "alone: \n" in said
    assert not (tree / "build").exists()


def test_what_passes_alone_passes_and_is_named(tree: Path) -> None:
    (tree / "test_a.py").write_text(UNLUCKY.format(name="unlucky"))
    (tree / "test_b.py").write_text(UNLUCKY.format(name="unlucky_too"))
    code, said = run(tree)
    assert code == 0, said
    assert "2 failed: once more, alone" in said
    assert "alone: test_a.py::test_unlucky, test_b.py::test_unlucky_too\n" in said


def test_what_passed_only_alone_is_kept_with_its_failure(tree: Path) -> None:
    """The file lasts from run to run; a test that failed again, or passed at once, is not there."""
    (tree / "test_a.py").write_text(UNLUCKY.format(name="unlucky") + BAD)
    run(tree)
    run(tree)
    lines = (tree / "build" / "second-tries.txt").read_text().splitlines()
    heads = [line for line in lines if not line.startswith("    ")]
    assert len(heads) == 2
    for head in heads:
        assert re.fullmatch(
            r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC commit \w+ load [\d.]+: "
            r"test_a\.py::test_unlucky",
            head,
        )
    assert len([line for line in lines if line.startswith("    E ") and "not alone" in line]) == 2


def test_what_fails_again_has_failed(tree: Path) -> None:
    (tree / "test_a.py").write_text(UNLUCKY.format(name="unlucky") + BAD)
    code, said = run(tree)
    assert code == 1
    assert "2 failed: once more, alone" in said
    assert "alone: test_a.py::test_unlucky\n" in said


def test_many_failures_are_not_tried_again(tree: Path) -> None:
    names = [f"unlucky_{number}" for number in range(11)]
    (tree / "test_a.py").write_text("".join(UNLUCKY.format(name=name) for name in names))
    code, said = run(tree)
    assert code == 1
    assert "once more" not in said
    assert "alone: \n" in said


def test_a_file_that_cannot_be_collected_is_not_tried_again(tree: Path) -> None:
    (tree / "test_a.py").write_text("import nothing_of_the_kind")
    code, said = run(tree)
    assert code > 0
    assert "once more" not in said


def test_a_process_that_crashes_has_a_second_chance(tree: Path) -> None:
    crash = "import os\ndef test_crash(request):\n    if {where}: os._exit(3)\n"
    (tree / "test_a.py").write_text(crash.format(where="hasattr(request.config, 'workerinput')"))
    code, said = run(tree)
    assert code == 0, said
    assert "alone: test_a.py::test_crash\n" in said
    # pytest itself ends with it the second time.
    (tree / "test_a.py").write_text(crash.format(where="True"))
    assert run(tree)[0] == 3
