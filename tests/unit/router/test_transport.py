"""Reading is paused while there is a reason to; closing lets written bytes reach the peer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moldau.router.transport import PausableTransport, Pause, piece_of


class FakeTransport:
    """Records what an asyncio transport is asked to do."""

    def __init__(self, unsent: int = 0) -> None:
        self.calls: list[str] = []
        self._unsent = unsent

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self._unsent

    def write(self, data: bytes) -> None:
        self.calls.append(f"write {data.decode()}")

    def __getattr__(self, name: str) -> Any:
        return lambda: self.calls.append(name)


def attached(transport: FakeTransport) -> PausableTransport:
    pausable = PausableTransport()
    pausable.attach(transport)  # type: ignore[arg-type]
    return pausable


def test_reading_goes_on_when_the_last_reason_is_gone() -> None:
    transport = FakeTransport()
    pausable = attached(transport)
    pausable.pause(Pause.CLIENT_IS_SLOW)
    pausable.pause(Pause.REQUESTS_WAIT)
    pausable.pause(Pause.REQUESTS_WAIT)
    pausable.resume(Pause.CLIENT_IS_SLOW)
    assert transport.calls == ["pause_reading"]
    assert not pausable.is_reading
    pausable.resume(Pause.REQUESTS_WAIT)
    pausable.resume(Pause.REQUESTS_WAIT)
    assert transport.calls == ["pause_reading", "resume_reading"]
    assert pausable.is_reading


def test_a_reason_from_before_the_connection_counts() -> None:
    pausable = PausableTransport()
    pausable.pause(Pause.CLIENT_IS_SLOW)
    transport = FakeTransport()
    pausable.attach(transport)  # type: ignore[arg-type]
    assert transport.calls == ["pause_reading"]


def test_what_is_written_before_the_connection_is_kept_and_after_it_dropped() -> None:
    pausable = PausableTransport()
    pausable.write(b"early")
    assert pausable.unsent == [b"early"]
    transport = FakeTransport()
    pausable.attach(transport)  # type: ignore[arg-type]
    pausable.write(b"now")
    pausable.abort()
    pausable.write(b"late")
    assert transport.calls == ["write now", "abort"]


def test_closing_aborts_a_peer_that_does_not_read() -> None:
    transport = FakeTransport()
    attached(transport).close()
    assert transport.calls == ["close"]
    slow = FakeTransport()
    pausable = attached(slow)
    pausable.is_write_paused = True
    pausable.close()
    assert slow.calls == ["abort"]


async def test_closing_waits_a_while_for_what_is_unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.router.transport.LINGER_S", 0.02)
    transport = FakeTransport(unsent=10)
    attached(transport).close()
    assert transport.calls == ["close"]
    await asyncio.sleep(0.2)
    assert transport.calls == ["close", "abort"]


def test_pieces_are_what_they_are_cut_from() -> None:
    data = bytes(range(256)) * 100
    assert piece_of(data, 0, len(data)) is data
    for start, end in ((0, 5), (3, 20_000), (25_000, 25_600)):
        assert bytes(piece_of(data, start, end)) == data[start:end]
