"""Names: everything of ours is imported as `moldau.…`, and names keep what they promise."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"broker", "router", "ops", "loadtest"}


@cache
def sources() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    return [ROOT / name for name in listed] or pytest.skip("not a checkout")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


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
        for name in imported(parsed(path))
        if name.split(".")[0] in FOLDERS
    ]
    assert wrong == []


def test_every_folder_is_linked() -> None:
    for name in FOLDERS:
        assert (ROOT / "moldau" / name).readlink() == Path("..", name)


def declared(tree: ast.AST) -> Iterator[tuple[ast.AST, str, ast.expr | None]]:
    """Functions and what they return; attributes, variables and parameters with a type."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, node.name, node.returns
        elif isinstance(node, ast.arg) and node.annotation is not None:
            yield node, node.arg, node.annotation
        elif isinstance(node, ast.AnnAssign):
            target = node.target
            if isinstance(target, ast.Name):
                yield node, target.id, node.annotation
            elif isinstance(target, ast.Attribute):
                yield node, target.attr, node.annotation


def is_of_bools(node: ast.AST, annotation: ast.expr | None) -> bool:
    """A function returns a bool; a variable holds a bool, bools, or a function that returns one."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return annotation is not None and ast.unparse(annotation) == "bool"
    found = ast.unparse(annotation) if annotation is not None else ""
    return re.search(r"\b[Bb]ool\b", found) is not None and "Future" not in found


def test_what_is_called_is_or_has_is_a_bool() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources()
        if path.relative_to(ROOT).parts[0] in FOLDERS
        for node, name, annotation in declared(parsed(path))
        if name.lstrip("_").startswith(("is_", "has_")) and not is_of_bools(node, annotation)
    ]
    assert wrong == []
