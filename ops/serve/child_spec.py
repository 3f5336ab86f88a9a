"""How to start one child process, and how to know that it is ready."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["supervisor", "router", "worker", "store", "http", "spare"]


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """How to start one child, and how to tell that it is ready."""

    role: Role
    index: int
    argv: Sequence[str]
    port: int | None = None
    # The slots of groups and transactional ids it owns, for the status.
    slots: tuple[int, ...] | None = None
    # Added to the supervisor's own environment.
    env: Mapping[str, str] = field(default_factory=dict)
    # Written to the child's standard input, which then stays open as its life-line.
    stdin_line: bytes | None = None
    # Called before each start. May raise OSError.
    before_start: Callable[[], None] | None = None
    # Asked for at each start after that, and added to `argv`.
    late_argv: Callable[[], Sequence[str]] | None = None
    # Awaited before it is asked to stop for good; those that use it have stopped.
    before_stop: Callable[[], Awaitable[None]] | None = None
    # None: ready when it writes the line `ready` to its standard output.
    ready_probe: Callable[[], Awaitable[bool]] | None = None
    # Where it speaks Kafka, a unix path or host and port: if it stops answering it is killed.
    ping: str | tuple[str, int] | None = None
    # It does not watch its life-line, so a guard does.
    guarded: bool = False
    # Descriptors it inherits: sockets to serve on, locks that must outlive the supervisor with it.
    pass_fds: tuple[int, ...] = ()
    # The end of its own log, for a child that does not log to standard error.
    last_words: Callable[[], str] | None = None

    @property
    def name(self) -> str:
        return self.role if self.role in ("store", "http") else f"{self.role} {self.index}"
