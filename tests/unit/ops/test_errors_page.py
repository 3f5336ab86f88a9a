"""Every text on the page of errors is in the code, so that a search for it finds the page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.brokers.running import ROOT

PAGE = (ROOT / "ops/docs/reference/errors.md").read_text()
GAP = "…"


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Its strings, with a gap for each value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[sdr]", GAP, node.value)
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values
            )


def test_each_text_is_what_the_code_says() -> None:
    texts = {
        text
        for folder in ("broker", "router", "ops")
        for path in (ROOT / folder).rglob("*.py")
        for text in texts_of(ast.parse(path.read_text()))
    }
    listed = re.findall(r"^\| `(.+?)` \|", PAGE, re.MULTILINE)
    assert len(listed) > 20
    for text in listed:
        # "…" on the page stands for one or more values and what is between them.
        pattern = re.compile(".*?".join(re.escape(part) for part in text.split(GAP)), re.DOTALL)
        assert any(pattern.search(known) for known in texts), text
