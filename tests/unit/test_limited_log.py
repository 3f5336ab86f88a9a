"""A flood of bad clients does not flood the log."""

import logging

import pytest

from moldau.broker.logging_setup import MOST, WINDOW_S, LimitedLog


def test_a_kind_is_logged_so_often_and_then_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr("moldau.broker.logging_setup.time.monotonic", lambda: now)
    log = LimitedLog(logging.getLogger("moldau.test"))
    for number in range(MOST + 500):
        log.warning("a", "closing %s", number)
    log.warning("b", "another kind")
    assert [record.getMessage() for record in caplog.records] == [
        *(f"closing {number}" for number in range(MOST)),
        "another kind",
    ]
    caplog.clear()
    now += WINDOW_S
    log.warning("a", "closing %s", "one more")
    log.warning("a", "closing %s", "the next")
    assert [record.getMessage() for record in caplog.records] == [
        "closing one more (and 500 like it that were not logged)",
        "closing the next",
    ]
