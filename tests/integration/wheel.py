"""Moldau as its users have it: built into a source distribution, from that into a wheel, and
installed outside of the tree."""

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
FILES = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "SECURITY.md", "CHANGELOG.md")
SOURCES = (*FILES, *FOLDERS)


def install_in_venv(directory: Path) -> Path:
    """Gives the `bin` directory of a fresh virtual environment that the wheel is installed in.

    The wheel is built from the source distribution.
    Dependencies are those of the running interpreter, whose own Moldau is not found: it is
    installed by a .pth file, which is not read in a directory that another .pth file adds.
    """
    environment = directory / "environment"
    venv.create(environment, with_pip=False)
    python = str(environment / "bin" / "python")
    wheel = build_wheel(build_source(directory), directory / "wheels")
    _pip("--python", python, "install", "--no-deps", "--no-compile", str(wheel))
    (site,) = environment.glob("lib/python3*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin"


def copy_tree(directory: Path) -> Path:
    """A copy to build in: builds write in the tree."""
    tree = directory / "tree"
    tree.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tree)
    return tree


def build_source(directory: Path) -> Path:
    """The source distribution of the tree."""
    built = directory / "source"
    built.mkdir()
    program = f"import setuptools.build_meta as it; it.build_sdist({str(built)!r})"
    _run([sys.executable, "-W", "ignore", "-c", program], copy_tree(directory))
    (source,) = built.glob("moldau-*.tar.gz")
    return source


def build_wheel(source: Path, built: Path) -> Path:
    """The wheel of a source distribution or a directory."""
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(built), str(source))
    (wheel,) = built.glob("moldau-*.whl")
    return wheel


def _pip(*words: str) -> None:
    _run([sys.executable, "-m", "pip", "--quiet", *words], ROOT)


def _run(command: list[str], directory: Path) -> None:
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
