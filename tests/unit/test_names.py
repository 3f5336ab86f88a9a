"""Names: everything of ours is imported as `moldau.…`, and names keep what they promise."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"broker", "router", "ops", "loadtest"}


def sources() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    return [ROOT / name for name in listed] or pytest.skip("not a checkout")


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def test_folders_are_imported_below_moldau() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources()
        for name in imported(ast.parse(path.read_bytes()))
        if name.split(".")[0] in FOLDERS
    ]
    assert wrong == []


def test_every_folder_is_linked() -> None:
    for name in FOLDERS:
        assert (ROOT / "moldau" / name).readlink() == Path("..", name)
