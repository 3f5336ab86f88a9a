"""A spare process: it has imported everything, and becomes the worker or router that dies next.

Imports are most of the time that a start takes. The spare waits for two lines on its standard
input: the role, and the settings. There is one at most; it is not a child of any role until then,
and not in the status. What ties children to the supervisor (children.py) ties the spare as well.
"""

import asyncio
import logging
import subprocess

from moldau.ops.serve.child_spec import ChildSpec
from moldau.ops.serve.children import ChildError, launch
from moldau.ops.serve.health import is_stopped

logger = logging.getLogger("moldau.supervisor")

# Not at once: a process that has just started, or taken the spare, needs the processor more.
FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0


class Spare:
    """One spare process at most. `keep` starts it again whenever it was taken or has died."""

    def __init__(self, spec: ChildSpec) -> None:
        self._spec = spec
        self._process: subprocess.Popen[bytes] | None = None
        self._gone = asyncio.Event()
        self._has_died = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def keep(self) -> None:
        """Have a spare, until cancelled; the last one is left to `stop`."""
        delay_s = FIRST_DELAY_S
        while True:
            await asyncio.sleep(delay_s)
            self._gone.clear()
            try:
                self._process = launch(self._spec)
            except ChildError as error:
                logger.warning("no spare process: %s", error)
                delay_s = min(2 * delay_s, LONGEST_DELAY_S)
                continue
            await self._gone.wait()
            delay_s = min(2 * delay_s, LONGEST_DELAY_S) if self._has_died else FIRST_DELAY_S

    def take(self) -> subprocess.Popen[bytes] | None:
        """The spare, for a child to use; None if there is none just now."""
        self.reap()  # it may have died a moment ago
        if self._process is not None and is_stopped(self._process.pid):
            self._process.kill()  # a process that does not run would never be ready
            return None
        process, self._process = self._process, None
        if process is not None:
            self._has_died = False
            self._gone.set()
        return process

    def reap(self) -> None:
        """Collect the spare if it has exited. Called on SIGCHLD."""
        process = self._process
        if process is None or process.poll() is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        logger.debug("the spare process has exited with code %s", process.returncode)
        self._process = None
        self._has_died = True
        self._gone.set()

    async def stop(self) -> None:
        """Kill it, and wait for its end. Only when `keep` was cancelled."""
        if self._process is not None:
            self._process.kill()
            await self._gone.wait()
