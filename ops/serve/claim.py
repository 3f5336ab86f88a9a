"""The claim on an external database: one broker serves it at a time.

An embedded store is locked by its data directory. An external one is served by the broker that has
its lease (`broker/store/lease.py`): for 9 s by the store's clock, renewed every second by each of
its workers, and by the supervisor until they serve. A worker that could not renew it in time serves
nobody (`broker/server/leased.py`), so the lease of a broker that is cut off, stopped or dead ends
by itself, and another may take it. On the same host a holder that is gone is recognised at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from moldau.broker.errors import StoreFault
from moldau.broker.net.lease import LEASE_MS, RENEW_EVERY_S, Lease
from moldau.broker.process import BootFailure
from moldau.broker.settings.processes import LeaseSettings
from moldau.broker.store.blocking import BlockingStore
from moldau.broker.store.lease import (
    AGAIN,
    ASK,
    KEEP,
    TAKE,
    Claimant,
    LeaseState,
    Verdict,
    new_token,
)
from moldau.ops.serve.runtime import process_exists

logger = logging.getLogger("moldau.supervisor")

RETRY_EVERY_S = 0.25
CONFIRM_WITHIN_MS = 1_000
RELEASE_WITHIN_S = 2.0
# A lease that ends later than before was renewed. What remains of it is known to a few ms.
RENEWED_BY_MS = 300

T = TypeVar("T")


class Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """The broker that serves a database."""

    host: str
    pid: int
    port: int
    since: float
    token: str = ""  # empty: a version of Moldau without leases
    processes: str = ""  # which processes `pid` counts, on one machine

    @property
    def is_gone(self) -> bool:
        """True only if it is certain: nothing is known of another host's processes."""
        is_here = self.host == socket.gethostname() and self.processes in ("", _processes())
        return is_here and not process_exists(self.pid)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, port {self.port}"


class Claim:
    """Take it before anything is started, keep it while serving, release it at the end."""

    def __init__(self, url: str, port: int, lease_ms: int = LEASE_MS) -> None:
        self._store = BlockingStore(url)
        self._lease_ms = lease_ms
        self._port = port
        self._may_have_it = False
        self._begin()
        self.holder: Holder | None = None  # as the store said last
        self.since = time.time()  # it has been held, or waited for

    def _begin(self) -> None:
        token = new_token()
        self._own = Holder(
            socket.gethostname(), os.getpid(), self._port, time.time(), token, _processes()
        )
        self._claimant = Claimant(token, msgspec.json.encode(self._own), self._lease_ms)
        self._lease = Lease(self._lease_ms)

    @property
    def for_workers(self) -> LeaseSettings:
        return LeaseSettings(
            token=self._own.token,
            holder=self._claimant.holder.decode(),
            lease_ms=self._lease_ms,
        )

    @property
    def is_ours(self) -> bool:
        return self.holder is self._own

    def facts(self) -> dict[str, Any]:
        """For the status."""
        return {
            "role": "holder" if self.is_ours else "standby",
            "since": self.since,
            "left_s": round(self._lease.left_s, 3) if self.is_ours else None,
            "holder": None if self.holder is None else msgspec.to_builtins(self.holder),
        }

    def take(self) -> None:
        """Raises BootFailure when another broker has it, or the store cannot be used."""
        try:
            self._take()
        except StoreFault as fault:
            raise BootFailure(f"the store cannot be served: {fault}") from None

    def _take(self) -> None:
        deadline = time.monotonic() + 2 * self._lease_ms / 1000 + 2
        first_end: int | None = None
        removed: Holder | None = None
        while (state := self._ask(TAKE)).verdict is not Verdict.YOURS:
            holder = self.holder
            if holder is not None and holder.is_gone and holder != removed:
                removed = holder
                self._remove(holder, state.holder)
                continue
            if first_end is None:
                first_end = state.ends_ms
                logger.warning("waiting: %s may be gone", holder or "the broker before")
            is_alive = holder is not None and state.ends_ms > first_end + RENEWED_BY_MS
            if is_alive or time.monotonic() > deadline:
                raise BootFailure(
                    f"this Redis database is served already, by {holder or 'another broker'}: "
                    "stop that one, or use a database of your own (redis://host:port/1), or wait "
                    "until it is gone with --standby"
                )
            time.sleep(RETRY_EVERY_S)
        self._taken()

    async def until_taken(self) -> None:
        """Wait for it, however long another broker has it."""
        self._begin()
        self.holder, self.since = None, time.time()
        is_known, is_reached = False, True
        while True:
            try:
                state = await in_thread(lambda known=is_known: self._ask(TAKE, known=known))  # type: ignore[misc]
            except StoreFault as fault:
                if is_reached:
                    logger.warning("standing by: the store cannot be reached: %s", fault)
                is_reached = False
            except BootFailure:
                raise
            else:
                if state.verdict is Verdict.YOURS:
                    break
                is_known = is_reached = True
            await asyncio.sleep(RETRY_EVERY_S)
        await in_thread(self._taken)

    async def keep(self, is_serving: Callable[[], bool] = lambda: False) -> None:
        """Watch it until it is lost to another broker, or cancelled. Workers renew it while they
        serve: if none of them can, it ends, whatever else of this broker reaches the store."""
        said_it = False
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            is_over = self._lease.is_over()
            if is_over and not said_it:
                said_it = True
                logger.critical(
                    "THE LEASE OF THE STORE COULD NOT BE RENEWED: clients are not served until it "
                    "can be, as another broker may have taken over"
                )
            mode = ASK if is_serving() else AGAIN if is_over else KEEP
            try:
                state = await in_thread(lambda mode=mode: self._ask(mode))  # type: ignore[misc]
            except (StoreFault, BootFailure):
                continue  # while the store is unreachable, no other broker can take it either
            if state.verdict is Verdict.LOST or state.verdict is Verdict.ANOTHERS:
                logger.critical(
                    "another broker serves this database now: %s", self.holder or "it has ended"
                )
                self._may_have_it = False
                return
            if not self._lease.is_over():
                if said_it:
                    logger.warning("the lease of the store is renewed: clients are served again")
                said_it = False

    def release(self) -> None:
        """Give it up, so that another broker may take it at once."""
        if not self._may_have_it:
            self._store.close()
            return
        done = threading.Event()

        def give_back() -> None:
            try:
                self._store.give_back_lease(self._claimant)
            except StoreFault as fault:
                logger.warning("the lease of the store could not be released: %s", fault)
            finally:
                self._store.close()
                done.set()

        threading.Thread(target=give_back, daemon=True).start()
        done.wait(RELEASE_WITHIN_S)

    def _ask(self, mode: str, *, known: bool = False) -> LeaseState:
        sent = self._lease.now()
        self._may_have_it = True  # until the store says something else
        state = self._store.lease(self._claimant, mode, known=known)
        if state.verdict is Verdict.YOURS:
            self.holder = self._own
            left_ms = max(state.ends_ms - state.now_ms, 0)
            self._lease.extend(sent + 900_000 * left_ms)
        else:
            self.holder = _decode(state.holder) if state.holder else None
            if mode == TAKE:
                self._may_have_it = False
        return state

    def _taken(self) -> None:
        self.since = time.time()
        self._own = msgspec.structs.replace(self._own, since=self.since)
        self._claimant = self._claimant._replace(holder=msgspec.json.encode(self._own))
        try:
            self._ask(KEEP)
            if not self._store.confirm_lease(CONFIRM_WITHIN_MS):
                logger.warning("a replica of the store is behind: it does not know the lease yet")
        except StoreFault as fault:
            logger.warning("the lease of the store is not confirmed: %s", fault)

    def _remove(self, holder: Holder, stored: bytes) -> None:
        """A holder of this host is gone."""
        if holder.token:
            self._store.give_back_lease(Claimant(holder.token, stored, self._lease_ms))
        else:
            self._store.release_claim(stored)


def _processes() -> str:
    """Names the processes of this machine, since it started, in this container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""  # not Linux


def holder_in_words(stored: str) -> str:
    """Who serves a database, as the store says; whatever it says if that is not Moldau's."""
    try:
        return str(msgspec.json.decode(stored, type=Holder))
    except msgspec.DecodeError:
        return stored


def _decode(holder: bytes) -> Holder:
    """Raises BootFailure."""
    try:
        return msgspec.json.decode(holder, type=Holder)
    except msgspec.DecodeError as fault:
        raise BootFailure(
            f"the key moldau:serving in the store is not Moldau's ({fault}): remove it, or use "
            "another database"
        ) from None


async def in_thread(call: Callable[[], T]) -> T:
    """Run a blocking call. Nobody waits for its thread when the process ends."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, fault: BaseException | None) -> None:
        if done.done():
            return
        if fault is not None:
            done.set_exception(fault)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, fault = None, None
        try:
            result = call()
        except Exception as raised:
            fault = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, result, fault)

    threading.Thread(target=run, daemon=True).start()
    return await done
