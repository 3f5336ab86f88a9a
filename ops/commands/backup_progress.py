"""The progress of backups and restores on standard error: a line that is written again on a
terminal, else one every ten seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Self

from moldau.ops.command_line import size_text

ON_TERMINAL_S, ELSEWHERE_S = 0.2, 10.0


class ProgressLine:
    """`done`: the word for what is done with the bytes."""

    def __init__(self, done: str) -> None:
        self._done = done
        self._terminal = sys.stderr.isatty()
        self._said_at = time.monotonic()
        self._has_said = False
        self._bytes = self._total = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal and self._has_said:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def begin(self, total: int) -> Callable[[int], None]:
        self._total = total
        return self._advance

    def _advance(self, count: int) -> None:
        self._bytes += count
        self._say(f"{size_text(self._bytes)} of {size_text(self._total)} {self._done}")

    def waiting(self, text: str) -> Callable[[], None]:
        """Returns what says `text` while something else works."""
        begun: list[float] = []

        def wait() -> None:
            if not begun:
                begun.append(time.monotonic())
            self._say(f"{text}, {time.monotonic() - begun[0]:.0f} s")

        return wait

    def _say(self, text: str) -> None:
        now = time.monotonic()
        if now - self._said_at < (ON_TERMINAL_S if self._terminal else ELSEWHERE_S):
            return
        self._said_at, self._has_said = now, True
        if self._terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        else:
            print(f"moldau: {text}", file=sys.stderr, flush=True)
