"""ops/moldau.service and ops/Containerfile: what can be checked without systemd and containers."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from moldau.broker.settings.options import OPTIONS
from tests.support.brokers.running import ROOT

ANALYZE = shutil.which("systemd-analyze")
UNIT, CONTAINER = ROOT / "ops" / "moldau.service", ROOT / "ops" / "Containerfile"


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    # The program it starts is not installed here.
    copy.write_text(UNIT.read_text().replace("/opt/moldau/bin/moldau", "/bin/true"))
    words = [str(ANALYZE), "verify", str(copy)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, complaints) == (0, [])


@pytest.mark.parametrize("file", [UNIT, CONTAINER], ids=lambda file: file.name)
def test_variables_and_options_are_those_of_serve(file: Path) -> None:
    text = file.read_text()
    known = {option.env for option in OPTIONS} | {"MOLDAU_RUNTIME_DIR"}
    named = {name for name in re.findall(r"MOLDAU_[A-Z_]+", text) if "_BROKER_" not in name}
    assert named <= known
    options = {option.name for option in OPTIONS}
    for line in text.splitlines():
        if "serve" in line and not line.startswith("#"):
            assert set(re.findall(r"--([a-z-]+)", line)) <= options


def test_the_image_has_all_that_is_packaged() -> None:
    copied = set(re.findall(r"^COPY (\w+) \1$", CONTAINER.read_text(), re.MULTILINE))
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert copied == packages
