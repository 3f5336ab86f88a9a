"""Forks processes from one that has imported everything, instead of starting Python for each.

A broker is at least four Python processes, and imports are most of what their start costs. Each
process of pytest has one process that has imported everything, and forks the others:

    process = run_loaded(["-m", "moldau.ops.cli", "serve", …], env=…, stdout=…, stderr=…)
    process.pid, process.poll(), process.wait(), process.terminate()

A `moldau serve` that was started like this forks its workers, routers and HTTP process in turn.
They are children of the supervisor, in sessions of their own, with a life-line on their standard
input and nothing open that is not theirs, as in production. Two things differ: the command line
that `ps` shows, and the salt of `hash()`, which all of them share.

Linux only. Tests of how processes start and die use fresh ones: see the fixture `fresh_processes`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import IO, Any

from moldau.ops.cli import COMMANDS
from moldau.ops.serve import children
from moldau.ops.serve.child_spec import ChildSpec

IS_AVAILABLE = sys.platform == "linux"
# What brokers and commands import now or later. The rest is imported by whoever uses it.
PRELOADED = (
    "moldau.broker.worker",
    "moldau.router.router",
    "moldau.broker.store.check",
    "moldau.ops.serve.claim",
    "moldau.ops.secure.start",
    "moldau.ops.http.process",
    "moldau.ops.console.app",
    "moldau.ops.console.backend",
    "moldau.ops.console.login",
    *(command.module for name, command in COMMANDS.items() if name not in ("pipeline", "bench")),
)
_LARGEST_REQUEST = 128 << 10


# --- in the process of the tests ---


class LoadedProcess:
    """A process that the loading process forked, with the interface of `subprocess.Popen`."""

    stdin: IO[str] | None = None  # is never a pipe

    def __init__(self, pid: int, stdout: IO[str] | None, exited: int) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._exited = exited  # a pipe on which its exit code will be written

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._exited], [], [], timeout)[0]:
            told = os.read(self._exited, 16)
            os.close(self._exited)
            assert told, "the process that forks brokers has died"
            self.returncode = int(told)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_loaded(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int,
) -> LoadedProcess:
    """Run `python WORDS`, where the words begin with `-m MODULE`.

    `stdin` is empty and `stdout` a pipe unless they are given.
    """
    with contextlib.ExitStack() as stack:
        output = None
        if stdout is None:
            reading, stdout = os.pipe()
            stack.callback(os.close, stdout)
            output = open(reading)  # noqa: SIM115
        if stdin is None:
            stdin = os.open(os.devnull, os.O_RDONLY)
            stack.callback(os.close, stdin)
        exited, telling = os.pipe()
        stack.callback(os.close, telling)
        request = json.dumps({"words": list(words), "env": dict(env), "cwd": os.getcwd()}).encode()
        assert len(request) < _LARGEST_REQUEST
        server = _server()
        socket.send_fds(server, [request], [stdin, stdout, stderr, telling])
        return LoadedProcess(int(server.recv(16)), output, exited)


def run_loaded_to_end(
    words: Sequence[str], *, env: Mapping[str, str], typed: str, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` as `subprocess.run` would, with `typed` as its standard input."""
    with (
        tempfile.TemporaryFile("w+") as stdin,
        tempfile.TemporaryFile("w+") as stdout,
        tempfile.TemporaryFile("w+") as stderr,
    ):
        stdin.write(typed)
        stdin.seek(0)
        files = [each.fileno() for each in (stdin, stdout, stderr)]
        process = run_loaded(words, env=env, stdin=files[0], stdout=files[1], stderr=files[2])
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(list(words), code, stdout.read(), stderr.read())


@cache
def _server() -> socket.socket:
    """The loading process ends when this socket is closed, with the process of the tests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        process.wait(30)

    atexit.register(end)
    return ours


# --- in the loading process ---


def main() -> None:
    for name in PRELOADED:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    requests = socket.socket(fileno=int(sys.argv[1]))
    children.launch = _launch
    gc.collect()
    gc.freeze()
    waiting: dict[int, int] = {}
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready = select.select([requests.fileno(), woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _tell_exits(waiting)
        if requests.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 4)
            if not message:
                return
            request = json.loads(message)
            pid = _fork(
                request["words"],
                descriptors[:3],
                env=request["env"],
                before=lambda where=request["cwd"]: os.chdir(where),  # type: ignore[misc]
            )
            waiting[pid] = descriptors.pop()
            for descriptor in descriptors:
                os.close(descriptor)
            requests.send(str(pid).encode())


def _tell_exits(waiting: dict[int, int]) -> None:
    while waiting:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        telling = waiting.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(telling, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(telling)


# --- in a supervisor that was forked ---


class _ForkedChild:
    """What `children.Child` needs of a `subprocess.Popen`."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid != 0:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


_really_launch = children.launch


def _launch(spec: ChildSpec) -> Any:
    """Replaces `children.launch`: modules of Python are forked."""
    late = spec.late_argv() if spec.late_argv is not None else ()
    interpreter, *words = [*spec.argv, *late]
    if interpreter != sys.executable or words[0] != "-m" or spec.ready_probe is not None:
        return _really_launch(spec)
    stdin, life_line = os.pipe()
    output, stdout = os.pipe()
    dies_with_us = children.die_with(os.getpid())

    def before() -> None:
        os.setsid()
        if dies_with_us is not None:
            dies_with_us()

    pid = _fork(
        words,
        (stdin, stdout, 2),
        env={**os.environ, **spec.env},
        keep=spec.pass_fds,
        before=before,
    )
    os.close(stdin)
    os.close(stdout)
    return _ForkedChild(pid, open(life_line, "wb", 0), open(output, "rb", 0))


# --- in both ---


def _fork(
    words: Sequence[str],
    stdio: Sequence[int],
    *,
    env: Mapping[str, str],
    keep: Sequence[int] = (),
    before: Callable[[], None],
) -> int:
    """Fork a process that runs `python WORDS`; returns its pid."""
    # A signal that came before the handlers are reset would reach the parent's event loop.
    with _signals_blocked():
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                before()
                _become(stdio, env, keep)
                code = _run(words)
            except BaseException:
                traceback.print_exc()
            finally:
                with contextlib.suppress(BaseException):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)
    return pid


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _become(stdio: Sequence[int], env: Mapping[str, str], keep: Sequence[int]) -> None:
    """Give up everything of the parent's: descriptors, signal handlers, environment, garbage."""
    gc.freeze()  # objects of the parent must not be collected: they would close our descriptors
    for wanted, given in enumerate(stdio):
        if wanted != given:
            os.dup2(given, wanted)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in keep:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    for descriptor in keep:
        os.set_inheritable(descriptor, True)
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.environ.clear()
    os.environ.update(env)


def _run(words: Sequence[str]) -> int:
    """`python -m MODULE WORDS…`: returns the exit code."""
    flag, module, *arguments = words
    assert flag == "-m"
    sys.modules.pop(module, None)  # as there, it is executed as `__main__`
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code is None:
            return 0
        if isinstance(ended.code, int):
            return ended.code
        print(ended.code, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    main()
