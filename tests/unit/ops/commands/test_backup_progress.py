"""The progress of backups: on a terminal one line, elsewhere one now and then."""

from __future__ import annotations

import pytest

from moldau.ops.commands.backup_progress import ProgressLine


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    return clock


def test_elsewhere_a_line_every_ten_seconds(
    now: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with ProgressLine("copied") as line:
        advance = line.begin(4 << 20)
        for _ in range(4):
            now[0] += 6
            advance(1 << 20)
    assert capsys.readouterr().err == (
        "moldau: 2.0 MiB of 4.0 MiB copied\nmoldau: 4.0 MiB of 4.0 MiB copied\n"
    )


def test_what_is_quick_says_nothing(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine("copied") as line:
        line.begin(10)(10)
        wait = line.waiting("loading it")
        wait()
        now[0] += 12
        wait()
    assert capsys.readouterr().err == "moldau: loading it, 12 s\n"


def test_on_a_terminal_the_line_is_written_again_and_removed(
    now: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with ProgressLine("read") as line:
        advance = line.begin(100)
        now[0] += 1
        advance(50)
    assert capsys.readouterr().err == "\r\033[K50 B of 100 B read\r\033[K"
