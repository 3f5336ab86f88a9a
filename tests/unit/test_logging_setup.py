"""What clients choose does not look like a line of the log's own."""

import io
import logging

import msgspec
import pytest

from moldau.broker.logging_setup import set_up_logging

NAME = "g\n2026-01-01T00:00:00.000Z CRITICAL worker-0 moldau: all is lost\r\x1b[2J\u2028\x85\x00"


@pytest.mark.parametrize("json", [False, True])
def test_a_message_is_one_line(monkeypatch: pytest.MonkeyPatch, json: bool) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    try:
        set_up_logging("worker-1", "info", json=json)
        try:
            raise ValueError("a reason")
        except ValueError:
            logging.getLogger("moldau.test").exception("group %s failed: %s", NAME, "ü 漢")
    finally:
        for handler in root.handlers[:]:
            root.removeHandler(handler)
        for handler in handlers:
            root.addHandler(handler)
        root.setLevel(level)
    lines = written.getvalue().rstrip("\n").split("\n")
    assert "CRITICAL" in lines[0]
    assert "ü 漢" in lines[0]
    if json:
        assert len(lines) == 1
        assert NAME in msgspec.json.decode(lines[0])["message"]
    else:
        assert lines[0].isprintable()
        assert lines[1] == "Traceback (most recent call last):"
