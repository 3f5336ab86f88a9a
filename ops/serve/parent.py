"""`serve --exit-with-parent`: end when standard input ends, which the parent holds open."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys

from moldau.broker.settings.processes import ConfigError


def check_standard_input() -> None:
    """Raises ConfigError."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        mode = 0
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        raise ConfigError(
            "--exit-with-parent needs a pipe as standard input, whose other end the parent keeps "
            "open: start serve with stdin=PIPE, or leave the option out"
        )


def watch_parent() -> None:
    """Stop as soon as the parent is gone. Nobody waits for replies then."""
    loop = asyncio.get_running_loop()
    standard_input = sys.stdin.fileno()

    def received() -> None:
        if not os.read(standard_input, 4096):
            loop.remove_reader(standard_input)
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)  # the second does not wait for requests

    loop.add_reader(standard_input, received)
