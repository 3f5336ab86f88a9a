"""Errors as clients see them: the code, and a message that says more than the code's name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.broker.errors import ErrorCode, KafkaError, StoreDown, StoreTimeout, message_for

ROOT = Path(__file__).parents[2]
# What `except` may catch that a client is answered with.
ANSWERED = {"MoldauError", "KafkaError", "StoreFault", "BaseException", "Exception"}


@pytest.mark.parametrize("code", ErrorCode)
def test_an_error_without_a_message_sends_none(code: ErrorCode) -> None:
    for bare in (KafkaError(code), KafkaError(code, "")):
        assert message_for(bare) is None
        assert str(bare) != code.name  # what log lines show is a phrase


def test_messages_are_sent_as_they_are() -> None:
    assert message_for(KafkaError(ErrorCode.INVALID_CONFIG, "no such key")) == "no such key"
    assert message_for(StoreTimeout("the store is slow")) == "the store is slow"
    assert message_for(StoreDown()) is None
    assert message_for(ZeroDivisionError("division by zero")) is None  # a bug is not explained


def test_no_handler_sends_an_error_as_text() -> None:
    """`str(fault)` and `code.name` would be shown in place of the client's own sentence."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for room in ("broker/handlers", "router")
        for path in sorted((ROOT / room).glob("*.py"))
        for line in _texts_of_errors(ast.parse(path.read_text()))
    ]
    assert found == []


def _texts_of_errors(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.name and ANSWERED & _names(node.type):
            yield from (call.lineno for call in _calls_of_str(node, node.name))
        if isinstance(node, ast.FunctionDef) and {"fault", "refusal"} & _arguments(node):
            for name in _arguments(node):
                yield from (call.lineno for call in _calls_of_str(node, name))
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "name"
            and isinstance(node.value, ast.Name)
            and node.value.id in {"error", "code"}
        ):
            yield node.lineno


def _names(node: ast.expr | None) -> set[str]:
    return {each.id for each in ast.walk(node or ast.Pass()) if isinstance(each, ast.Name)}


def _arguments(function: ast.FunctionDef) -> set[str]:
    return {argument.arg for argument in function.args.args}


def _calls_of_str(inside: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(inside):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "str"
            and any(isinstance(each, ast.Name) and each.id == name for each in node.args)
        ):
            yield node
