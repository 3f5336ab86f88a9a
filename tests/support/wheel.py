"""Moldau as its users have it: built into a wheel and installed outside of the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.running import ROOT

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "broker", "router", "ops", "loadtest")


def install_wheel(directory: Path) -> Path:
    """Gives the directory to put on the Python path. Built from a copy: builds write in the tree.

    Dependencies are those of the running interpreter.
    """
    tree, site = directory / "tree", directory / "site"
    tree.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, tree / name, ignore=ignored)
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, tree)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--no-compile", "--target", str(site), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return site


def run_python(program: str, directory: Path, site: Path | None = None) -> str:
    """What a program prints that runs outside of the tree, with the wheel in `site` if given."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if site is not None:
        env["PYTHONPATH"] = str(site)
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(
        command, cwd=directory, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
