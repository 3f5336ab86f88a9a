"""Logging of every process: set-up, levels that can be changed, warnings that are rate-limited.

Processes log to standard error, one line for each event, as text or JSON.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping

import msgspec

# Text that clients choose (names of groups, users, topics) must not look like other log lines.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}


class TextFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        if not record.message.isprintable():
            record.message = record.message.translate(_CONTROLS)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": record.created,
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()


def set_up_logging(process: str, level: str, *, json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if json:
        handler.setFormatter(JsonFormatter(process))
    else:
        text = f"%(asctime)s.%(msecs)03dZ %(levelname)-7s {process} %(name)s: %(message)s"
        formatter = TextFormatter(text, datefmt="%Y-%m-%dT%H:%M:%S")
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


# --- levels, under Kafka's names (KIP-412) ---

ROOT = "root"
# Python has no TRACE: it shows what DEBUG does.
LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}

# One line for each request. It has its own level: --log-level debug does not turn it on.
request_logger = logging.getLogger("moldau.request")
request_logger.setLevel(logging.INFO)
logging.getLogger("moldau")  # the parent of all loggers, so that its level can be set


class LogLevels:
    """The levels of this process' loggers. A change lasts until the process ends, as in Kafka."""

    def __init__(self) -> None:
        self.on_changed: Callable[[], None] = lambda: None

    def in_force(self) -> dict[str, str]:
        """The level of every logger, its own or the one it inherits."""
        known = logging.Logger.manager.loggerDict.items()
        found = {name: each for name, each in known if isinstance(each, logging.Logger)}
        shown = {name: _shown(found[name].getEffectiveLevel()) for name in sorted(found)}
        return {ROOT: _shown(logging.getLogger().level), **shown}

    def change(self, levels: Mapping[str, str | None]) -> None:
        """Set levels by logger; None makes it inherit. All names and levels are known."""
        for name, level in levels.items():
            logger = logging.getLogger(None if name == ROOT else name)
            logger.setLevel(logging.NOTSET if level is None else LEVELS[level])
        self.on_changed()


def _shown(level: int) -> str:
    """Kafka's name for a Python level."""
    return next((name for name, number in LEVELS.items() if level <= number), "FATAL")


# --- warnings that clients cause ---

MOST, WINDOW_S = 10, 60.0


class LimitedLog:
    """Logs at most MOST warnings of each kind a minute, and counts the others."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._kinds: dict[str, _Kind] = {}

    def warning(self, kind: str, text: str, *arguments: object) -> None:
        """`kind`: one of a few; never text that a client sent."""
        known = self._kinds.setdefault(kind, _Kind())
        suppressed = known.take(time.monotonic())
        if suppressed is None:
            return
        if suppressed:
            text += " (and %d like it that were not logged)"
            arguments = (*arguments, suppressed)
        self._logger.warning(text, *arguments)


class _Kind:
    __slots__ = ("_left", "_suppressed", "_until")

    def __init__(self) -> None:
        self._until = 0.0
        self._left = 0
        self._suppressed = 0

    def take(self, now: float) -> int | None:
        """The number of warnings suppressed before this one; None if this one is suppressed too."""
        if now >= self._until:
            self._until = now + WINDOW_S
            self._left = MOST
        if not self._left:
            self._suppressed += 1
            return None
        self._left -= 1
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed
