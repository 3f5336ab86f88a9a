"""One child process: started, awaited, reaped, and never left behind.

Three things tie a child to the supervisor, so that not even `kill -9` of it leaves an orphan:

- The life-line: the child's standard input is a pipe whose other end only the supervisor holds.
  When it closes, the child exits. Workers and routers watch it themselves.
- The guard, for a child that does not watch a life-line (the store): a shell that waits on such a
  pipe and then kills the child's whole process group, forked helpers included.
- On Linux also the kernel: PR_SET_PDEATHSIG kills the child with the thread that started it, even
  a child that hangs or is stopped. That thread must be the supervisor's main thread, so no
  executor starts children, and they are reaped on SIGCHLD.

Children have sessions of their own: the terminal's Ctrl-C reaches the supervisor only, which then
stops them in order.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum

from moldau.broker.process import BOOT_FAILED
from moldau.ops.serve.child_spec import ChildSpec

logger = logging.getLogger("moldau.supervisor")

PROBE_INTERVAL_S = 0.02
READY_LINE = b"ready"
GUARD_SCRIPT = 'read -r _; kill -s KILL -- "-$1"'


class State(StrEnum):
    STANDBY = "standby"  # only the supervisor: another broker serves the store
    STARTING = "starting"
    RUNNING = "running"
    BACKOFF = "backoff"
    STOPPING = "stopping"
    STOPPED = "stopped"


class ChildError(RuntimeError):
    """The child could not be started, or exited before it was ready."""


class Child:
    """A child process through all its restarts."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.state = State.STOPPED
        self.restarts = 0
        self.started_at = 0.0
        self._ready_at: float | None = None
        self._exited_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._ready = asyncio.Event()
        self._exited = asyncio.Event()
        self._exited.set()
        self._output = b""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.is_alive else None

    @property
    def is_alive(self) -> bool:
        return not self._exited.is_set()

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode if self._process is not None else None

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self.started_at if self.is_alive else 0.0

    def was_healthy_for(self, seconds: float) -> bool:
        """Whether the process that exited had been ready for that long."""
        return self._ready_at is not None and self._exited_at - self._ready_at >= seconds

    def start(self, spare: subprocess.Popen[bytes] | None = None) -> None:
        """Start the process, or let a spare become it; `until_ready` waits. Raises ChildError."""
        spec = self.spec
        self.state = State.STARTING
        self._ready_at = None
        self._output = b""
        try:
            if spec.before_start is not None:
                spec.before_start()
            process = spare or launch(spec)
        except (ChildError, OSError) as fault:
            self.state = State.STOPPED
            if isinstance(fault, OSError):
                raise ChildError(f"{spec.name} cannot be started: {fault}") from fault
            raise
        self._process = process
        self.started_at = time.monotonic()
        self._exited.clear()
        if spec.guarded:
            self._guard = guard_of(process)
        if spec.stdin_line is not None:
            assert process.stdin is not None
            # Far below what a pipe holds, so this never blocks. A child that has exited already
            # is handled when it is reaped.
            role = b"" if spare is None else spec.role.encode() + b"\n"
            with contextlib.suppress(BrokenPipeError):
                os.write(process.stdin.fileno(), role + spec.stdin_line + b"\n")
        if process.stdout is not None:
            os.set_blocking(process.stdout.fileno(), False)
            asyncio.get_running_loop().add_reader(process.stdout.fileno(), self._read_output)

    def reap(self) -> None:
        """Collect the process if it has exited. Called on SIGCHLD."""
        process = self._process
        if process is None or not self.is_alive or process.poll() is None:
            return
        if process.stdout is not None:
            self._read_output()
            asyncio.get_running_loop().remove_reader(process.stdout.fileno())
            process.stdout.close()
        if process.stdin is not None:
            process.stdin.close()
        if self._guard is not None:
            # Before its life-line is cut: the process group it would kill may be reused soon.
            self._guard.kill()
            self._guard.wait()
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard = None
        self._exited_at = time.monotonic()
        self._ready.clear()
        self._exited.set()

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.is_alive:
            # Popen does not signal a process it has already reaped.
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process and everything it forked."""
        if self._process is not None and self.is_alive:
            # macOS reports "not permitted" for a process that has exited and is not reaped yet.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def until_exit(self) -> None:
        await self._exited.wait()

    async def until_ready(self) -> None:
        """Wait until the child serves. Raises ChildError when it exits first."""
        probe = self.spec.ready_probe
        if probe is None:
            await first_of(self._ready.wait(), self._exited.wait())
        else:
            while self.is_alive and not await probe():
                await first_of(self._exited.wait(), timeout_s=PROBE_INTERVAL_S)
        if not self.is_alive:
            raise ChildError(self.exit_text())
        self._ready.set()
        self._ready_at = time.monotonic()
        self.state = State.RUNNING

    async def until_next_ready(self) -> None:
        """Wait until the process has exited and the next one serves."""
        await self._exited.wait()
        await self._ready.wait()

    def exit_text(self) -> str:
        """How the child exited, in words."""
        code = self.exit_code
        if code is None:
            how = "was never started"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        elif code == BOOT_FAILED:
            how = "could not start; its reason is above"
        else:
            how = f"exited with code {code}"
        words = self.spec.last_words() if self.spec.last_words is not None else ""
        return f"{self.spec.name} {how}" + (f": {words}" if words else "")

    def _read_output(self) -> None:
        """Look for the ready line; anything else a child prints is logged."""
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        try:
            chunk = os.read(descriptor, 65536)
        except BlockingIOError:
            return
        if not chunk:
            asyncio.get_running_loop().remove_reader(descriptor)
        *lines, self._output = (self._output + chunk).split(b"\n")
        for line in lines:
            if line.strip() == READY_LINE:
                self._ready.set()
            elif line.strip():
                logger.info("%s: %s", self.spec.name, line.decode(errors="replace"))


def launch(spec: ChildSpec) -> subprocess.Popen[bytes]:
    """Start a process that ends with the supervisor. Raises ChildError."""
    watches_life_line = spec.stdin_line is not None
    late = spec.late_argv() if spec.late_argv is not None else ()
    try:
        return subprocess.Popen(
            [*spec.argv, *late],
            stdin=subprocess.PIPE if watches_life_line else subprocess.DEVNULL,
            stdout=subprocess.PIPE if spec.ready_probe is None else subprocess.DEVNULL,
            env={**os.environ, **spec.env},
            pass_fds=spec.pass_fds,
            start_new_session=True,
            umask=0o077,
            preexec_fn=die_with(os.getpid()),
        )
    except OSError as error:
        raise ChildError(f"{spec.argv[0]} cannot be run: {error.strerror}") from error


async def first_of(*waits: Awaitable[object], timeout_s: float | None = None) -> None:
    """Wait for one of them, or for the timeout; cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def guard_of(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """A guard that kills the process group of `process` when this process ends."""
    return subprocess.Popen(
        ["/bin/sh", "-c", GUARD_SCRIPT, "moldau-guard", str(process.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


_PR_SET_PDEATHSIG = 1
# Loaded before any fork: what runs between fork and exec should do as little as possible.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def die_with(parent: int) -> Callable[[], None] | None:
    """Runs in a child before exec, on Linux: the child is killed when the supervisor dies."""
    if _prctl is None:
        return None
    prctl = _prctl

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above took effect
            os._exit(BOOT_FAILED)

    return before_exec
