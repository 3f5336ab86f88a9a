"""The supervisor: starts the processes of one host in order, restarts those that die, stops all.

    stand_by ──▶ startup ──▶ main_loop ──▶ shutdown
       │            │            │            ▲
       └────────────┴────────────┴─ SIGTERM ──┘    (a second one does not wait for requests)

Only a standby (`serve --standby`) stands by: it waits until no other broker serves the store. A
broker that loses the lease of its store to another one shuts down at once.

Children start in stages, each of which needs the ones before: the store, then workers and routers.
The children of a stage start in parallel, and the next stage waits until all of them are ready;
shutdown goes backwards. What the children do is not known here: a `ChildSpec` describes how to
start one and how to tell that it is ready.

Companions (the HTTP process) start when the broker serves, which does not depend on them.

- At startup, a child that exits before it is ready ends `serve` (BootFailure, exit code 3).
- Later, a child that dies is restarted: at once if it was healthy for ten seconds, else after
  0.1 s, then twice as long each time up to 5 s. Workers and routers use the spare (spare.py).
- A child that hangs is killed, and so restarted (health.py).
- SIGHUP asks `reload` for the children as they should be now, and replaces those whose settings
  changed, one after another.
"""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from moldau.broker.process import BootFailure
from moldau.ops.serve.child_spec import ChildSpec
from moldau.ops.serve.children import Child, ChildError, State, first_of
from moldau.ops.serve.control import Requests, remove_socket, serve_control
from moldau.ops.serve.health import kill_when_silent, kill_when_stopped
from moldau.ops.serve.spare import Spare
from moldau.ops.serve.standby import Tenure, WarmProcesses

logger = logging.getLogger("moldau.supervisor")

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0
HEALTHY_AFTER_S = 10.0
# `serve` exits within 10 s of SIGTERM. The store, stopped last, gets what is left of them.
DRAIN_S = 7.0
STOP_S = 9.0

StartStages = Sequence[Sequence[ChildSpec]]


class Supervisor:
    """Runs the stages until it is asked to stop. `run` needs the main thread of the process."""

    def __init__(
        self,
        stages: StartStages,
        *,
        port: int,
        control_path: Path,
        store: dict[str, Any],
        on_ready: Callable[[], None],
        reload: Callable[[], StartStages] | None = None,
        background: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
        before_serving: Callable[[], Coroutine[Any, Any, None]] | None = None,
        spare: ChildSpec | None = None,
        companions: Sequence[ChildSpec] = (),
        stop_listening: Callable[[], None] = lambda: None,
        requests: Requests | None = None,
        tenure: Tenure | None = None,
    ) -> None:
        """Take the stages to run. `tenure` is None if no other broker can serve the store."""
        self._stages = [[Child(spec) for spec in stage] for stage in stages]
        self._companions = [Child(spec) for spec in companions]
        self._port = port
        self._control_path = control_path
        self._store = store
        self._on_ready = on_ready
        self._reload = reload
        self._background = background
        self._before_serving = before_serving
        self.spare = Spare(spare) if spare is not None else None
        self._stop_listening = stop_listening
        self._requests = requests
        self._tenure = tenure
        self._warm = WarmProcesses(tenure.warm if tenure is not None else ())
        self._lost = asyncio.Event()
        self._started_at = time.monotonic()
        self._state = State.STARTING
        self._had_terminal = os.isatty(2)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._reloads = asyncio.Event()

    @property
    def children(self) -> list[Child]:
        return [*self._needed, *self._companions]

    @property
    def _needed(self) -> list[Child]:
        return [child for stage in self._stages for child in stage]

    async def run(self) -> bool:
        """Start and serve; returns when all children are stopped: True if the broker was not asked
        to stop, but has lost the store to another one. Raises BootFailure."""
        self._listen_to_signals()
        control = await serve_control(self._control_path, self.status, self._requests)
        keeping: asyncio.Future[None] | None = None
        try:
            await self.stand_by()
            if self._tenure is not None and not self._stop.is_set():
                keeping = asyncio.ensure_future(self._keep_tenure(self._tenure))
            self._state = State.STARTING
            await first_of(self.startup(), self._until_over())
            if not self._is_over:
                self._state = State.RUNNING
                self._on_ready()
                await self.main_loop()
        finally:
            if keeping is not None:
                keeping.cancel()
            await self.shutdown()
            control.close()
            remove_socket(self._control_path)
        return self._lost.is_set() and not self._stop.is_set()

    async def stand_by(self) -> None:
        """Wait until the store is ours, with everything loaded. Raises BootFailure."""
        tenure = self._tenure
        if tenure is None or tenure.until_taken is None:
            return
        self._state = State.STANDBY
        self._warm.begin()
        tasks = [asyncio.ensure_future(self._accompany(each)) for each in self._companions]
        tasks += [asyncio.ensure_future(job()) for job in tenure.background]
        tenure.on_standby()
        try:
            await first_of(tenure.until_taken(), self._stop.wait())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not self._stop.is_set():
            self._stages = [[Child(spec) for spec in stage] for stage in tenure.stages()]

    async def _keep_tenure(self, tenure: Tenure) -> None:
        await tenure.keep(lambda: self._state is State.RUNNING)
        self._lost.set()

    @property
    def _is_over(self) -> bool:
        return self._stop.is_set() or self._lost.is_set()

    async def _until_over(self) -> None:
        await first_of(self._stop.wait(), self._lost.wait())

    async def startup(self) -> None:
        """Start the stages one after another, the last one when the store has been prepared.
        Raises BootFailure."""
        for stage in self._stages:
            if stage is self._stages[-1] and self._before_serving is not None:
                await self._before_serving()
            try:
                for child in stage:
                    child.start(self._take_warm(child))
                await asyncio.gather(*(child.until_ready() for child in stage))
            except ChildError as error:
                raise BootFailure(str(error)) from None
        await self._warm.stop()

    async def main_loop(self) -> None:
        """Keep every child alive until SIGTERM."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._keep(child)) for child in self._needed]
            tasks += [group.create_task(self._accompany(each)) for each in self._companions]
            for child in self.children:
                if child.spec.ping is not None:
                    tasks.append(group.create_task(kill_when_silent(child)))
                    tasks.append(group.create_task(kill_when_stopped(child)))
            tasks += [group.create_task(job()) for job in self._background]
            tasks.append(group.create_task(self._reload_when_asked()))
            if self.spare is not None:
                tasks.append(group.create_task(self.spare.keep()))
            await self._until_over()
            for task in tasks:
                task.cancel()

    async def shutdown(self) -> None:
        """Stop the stages, last one first: drained if there is time, else killed."""
        # Nothing to finish in order: another broker serves, or nobody was served here.
        is_abrupt = self._lost.is_set() or self._state is State.STANDBY
        self._state = State.STOPPING
        begun = time.monotonic()
        # No process will take connections from now on.
        self._stop_listening()
        if self.spare is not None:
            await self.spare.stop()
        await self._warm.stop()
        if is_abrupt:
            for child in self.children:
                child.kill()
        for stage in reversed([*self._stages, self._companions]):
            alive = [child for child in stage if child.is_alive]
            for child in alive:
                child.state = State.STOPPING
                if child.spec.before_stop is not None:
                    await child.spec.before_stop()
                child.signal(signal.SIGTERM)
            limit = STOP_S if stage in self._stages[:1] else DRAIN_S
            left = max(0.5, limit - (time.monotonic() - begun))
            await self._until_gone(alive, left)
            for child in alive:
                if child.is_alive:
                    logger.warning("%s did not stop in time: killed", child.spec.name)
                    child.kill()
                await child.until_exit()
                child.state = State.STOPPED

    # --- signals and status ---

    def handle_sigterm(self) -> None:
        if self._stop.is_set():
            logger.warning("asked to stop again: not waiting for requests in flight")
            self._hurry.set()
        self._stop.set()

    def handle_sigint(self) -> None:
        self.handle_sigterm()

    def handle_sighup(self) -> None:
        if self._had_terminal and not os.isatty(2):
            self.handle_sigterm()  # the terminal was closed
        else:
            self._reloads.set()

    def handle_sigchld(self) -> None:
        for child in self.children:
            child.reap()
        if self.spare is not None:
            self.spare.reap()
        self._warm.reap()

    def status(self) -> dict[str, Any]:
        """The document that `moldau status --json` prints."""
        own = {
            "role": "supervisor",
            "index": 0,
            "pid": os.getpid(),
            "port": self._port,
            "uptime_s": round(time.monotonic() - self._started_at, 3),
            "restarts": 0,
            "state": str(self._state),
            "slots": None,
        }
        return {
            "processes": [
                own,
                *(
                    {
                        "role": child.spec.role,
                        "index": child.spec.index,
                        "pid": child.pid,
                        "port": child.spec.port,
                        "uptime_s": round(child.uptime_s, 3),
                        "restarts": child.restarts,
                        "state": str(child.state),
                        "slots": child.spec.slots,
                    }
                    for child in self.children
                ),
            ],
            "store": self._store,
            **({} if self._tenure is None else {"lease": self._tenure.facts()}),
        }

    # --- keeping one child alive ---

    async def _keep(self, child: Child) -> None:
        backoff = FIRST_BACKOFF_S
        while True:
            await child.until_exit()
            if child.state is not State.STOPPING:  # else it was asked to, and is restarted at once
                if child.was_healthy_for(HEALTHY_AFTER_S):
                    backoff = 0.0
                logger.error("%s; restarting it in %.1f s", child.exit_text(), backoff)
                child.state = State.BACKOFF
                await asyncio.sleep(backoff)
                backoff = min(max(2 * backoff, FIRST_BACKOFF_S), LONGEST_BACKOFF_S)
            child.restarts += 1
            try:
                child.start(self._take_spare(child))
            except ChildError:
                logger.exception("%s cannot be restarted", child.spec.name)
                continue
            with contextlib.suppress(ChildError):  # it exited: logged in the next round
                await child.until_ready()
                logger.info("%s is serving again, process %s", child.spec.name, child.pid)

    async def _accompany(self, child: Child) -> None:
        """Start a companion once the broker serves, and keep it alive."""
        with contextlib.suppress(ChildError):  # logged by `_keep`, which tries again
            if not child.is_alive:  # else it was started by a standby
                child.start()
            await child.until_ready()
        await self._keep(child)

    def _take_warm(self, child: Child) -> subprocess.Popen[bytes] | None:
        return self._warm.take() if child.spec.role in ("worker", "router") else None

    def _take_spare(self, child: Child) -> subprocess.Popen[bytes] | None:
        if self.spare is None or child.spec.role not in ("worker", "router"):
            return None
        return self.spare.take()

    # --- re-reading the configuration ---

    async def _reload_when_asked(self) -> None:
        while True:
            await self._reloads.wait()
            self._reloads.clear()
            if self._reload is None:
                continue
            try:
                wanted = {spec.name: spec for stage in self._reload() for spec in stage}
            except ValueError as error:
                logger.error("the configuration is not reloaded: %s", error)  # noqa: TRY400
                continue
            for child in self.children:
                spec = wanted.get(child.spec.name)
                if spec is None:
                    continue
                if spec.stdin_line != child.spec.stdin_line:
                    await self._replace(child, spec)
                elif child.state is State.RUNNING and child.spec.role in {"worker", "router"}:
                    child.signal(signal.SIGHUP)  # for its certificates
            logger.info("configuration reloaded")

    async def _replace(self, child: Child, spec: ChildSpec) -> None:
        """Let a child drain, and restart it with a new specification."""
        child.spec = spec
        if child.state is not State.RUNNING:
            return  # it is being restarted anyway, with the new one
        logger.info("%s restarts with the new configuration", spec.name)
        back = asyncio.ensure_future(child.until_next_ready())
        child.state = State.STOPPING
        child.signal(signal.SIGTERM)
        await first_of(child.until_exit(), timeout_s=DRAIN_S)
        if child.state is State.STOPPING:
            child.kill()
        # One at a time: settings that keep a worker from starting affect one only.
        await back

    # --- signals ---

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            loop.add_signal_handler(number, getattr(self, f"handle_{number.name.lower()}"))

    async def _until_gone(self, children: Sequence[Child], patience_s: float) -> None:
        """Wait until all have exited, up to `patience_s`.

        A second request to stop ends the wait for requests in flight, but not the store's: what it
        has acknowledged must reach its file.
        """
        if not children:
            return
        waits = [_all_gone(children)]
        if children[0].spec.role != "store":
            waits.append(self._until_hurry())
        await first_of(*waits, timeout_s=patience_s)

    async def _until_hurry(self) -> None:
        await self._hurry.wait()


async def _all_gone(children: Sequence[Child]) -> None:
    for child in children:
        await child.until_exit()
