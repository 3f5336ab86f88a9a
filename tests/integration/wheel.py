"""Moldau as its users have it: built into a wheel and installed outside of the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from tests.support.brokers.running import ROOT

FOLDERS = ("moldau", "broker", "router", "ops", "loadtest")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", *FOLDERS)


def install_in_venv(directory: Path) -> Path:
    """Gives the `bin` directory of a fresh virtual environment that the wheel is installed in.

    Dependencies are those of the running interpreter, whose own Moldau is not found: it is
    installed by a .pth file, which is not read in a directory that another .pth file adds.
    """
    environment = directory / "environment"
    venv.create(environment, with_pip=False)
    python = str(environment / "bin" / "python")
    _pip("--python", python, "install", "--no-deps", "--no-compile", _build_wheel(directory))
    (site,) = environment.glob("lib/python3*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin"


def _build_wheel(directory: Path) -> str:
    """Its path. Built from a copy: builds write in the tree."""
    tree, built = directory / "tree", directory / "wheels"
    tree.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, tree)
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(built), str(tree))
    (wheel,) = built.glob("moldau-*.whl")
    return str(wheel)


def _pip(*words: str) -> None:
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    command = [sys.executable, "-m", "pip", "--quiet", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
