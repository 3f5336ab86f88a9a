"""Progress of a long job: a bar on a terminal, else a log line every few seconds."""

from __future__ import annotations

import sys
import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

LINE_EVERY_S = 5.0


class Meter:
    """Records and bytes done, the rate, and the rest; written to standard error."""

    def __init__(self, what: str, console: Console | None = None) -> None:
        self._what = what
        self._console = console or Console(stderr=True)
        self._began = time.monotonic()
        self._last_line = self._began - LINE_EVERY_S
        self.records = 0
        self.bytes = 0
        self.lag = 0
        self.unreadable = 0  # batches
        self._unprinted = False
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[status]}"),
                TimeElapsedColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task(self._what, total=None, status="starting Spark")
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._unprinted:
            self._line()

    def say(self, text: str) -> None:
        """A status while there is nothing to count."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, status=text)
        else:
            self._print(text)

    def advance(self, records: int, size: int, lag: int) -> None:
        self.records += records
        self.bytes += size
        self.lag = lag
        self._unprinted = True
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task, completed=self.records, total=self.records + lag, status=self.summary()
            )
        elif time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._line()

    def summary(self) -> str:
        elapsed = max(time.monotonic() - self._began, 1e-6)
        unreadable = f", {self.unreadable:,} unreadable batches" if self.unreadable else ""
        return (
            f"{self.records:,} records, {self.bytes / 1e6:,.1f} MB, "
            f"{self.records / elapsed:,.0f} records/s, {self.bytes / 1e6 / elapsed:,.1f} MB/s, "
            f"{self.lag:,} left{unreadable}"
        )

    def _line(self) -> None:
        self._last_line = time.monotonic()
        self._unprinted = False
        self._print(self.summary())

    def _print(self, text: str) -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        print(f"{when} {self._what}: {text}", file=sys.stderr, flush=True)
