"""The loggers of this process and their levels, under Kafka's names (KIP-412).

Levels that are set last until the process ends, as in Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

ROOT = "root"
# Python has no TRACE: it shows what DEBUG does.
LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}

# One line for each request. With a level of its own: --log-level debug does not turn it on.
request_logger = logging.getLogger("moldau.request")
request_logger.setLevel(logging.INFO)
logging.getLogger("moldau")  # the parent of ours, so that it can be set


class LogLevels:
    def __init__(self) -> None:
        self.on_changed: Callable[[], None] = lambda: None

    def in_force(self) -> dict[str, str]:
        """The level of every logger, its own or the one it inherits."""
        known = logging.Logger.manager.loggerDict.items()
        found = {name: each for name, each in known if isinstance(each, logging.Logger)}
        shown = {name: _shown(found[name].getEffectiveLevel()) for name in sorted(found)}
        return {ROOT: _shown(logging.getLogger().level), **shown}

    def change(self, levels: Mapping[str, str | None]) -> None:
        """Set levels by logger; None: from now on it inherits. All names and levels are known."""
        for name, level in levels.items():
            logger = logging.getLogger(None if name == ROOT else name)
            logger.setLevel(logging.NOTSET if level is None else LEVELS[level])
        self.on_changed()


def _shown(level: int) -> str:
    """Kafka's name of a level of Python's."""
    return next((name for name, number in LEVELS.items() if level <= number), "FATAL")
