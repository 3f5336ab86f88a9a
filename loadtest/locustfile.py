"""The load test: `locust -f loadtest --headless -u 200 -r 50 -t 1m --host 127.0.0.1:9092`.

Producer     batches of stamped records on a schedule, to the partitions in turn
TailReader   parked at the end of one partition; reports the age of what arrives ("end to end")
GroupMember  a consumer of a group: join, sync, heartbeats, fetch, commit, leave
GroupChurn   the same in groups of their own, where members come, go, and crash
AdminUser    metadata, descriptions, lists
ColdReader   one partition after the other from its start to its end
TransactionalProducer    transactions over two partitions, committed or aborted at random
CommittedReader          parked at the end of what is committed

The users are in users/. Here is what surrounds them: the options, the topic, and the verdict.

Every API is a line of the statistics, its type is the user's class. Users keep to a schedule, and
latency counts from when a request was due, so a slow broker shows. What is read is checked (see
users/client/stamped.py). A lost, duplicated, reordered or damaged record, or one that was aborted
and is read, is a failure of type "check" that names it, and the run ends with exit code 1, also
when locust ignores errors (--exit-code-on-error 0).
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

import gevent
from locust import LoadTestShape, events
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from moldau.loadtest.users.admin import AdminUser
from moldau.loadtest.users.client.session import REQUEST_ERRORS, Session
from moldau.loadtest.users.group_members import GroupChurn, GroupMember
from moldau.loadtest.users.options import (
    TOPIC_CONFIGS,
    add_options,
    bootstrap_of,
    host_of,
    security_of,
)
from moldau.loadtest.users.producer import Producer
from moldau.loadtest.users.readers import ColdReader, TailReader
from moldau.loadtest.users.shapes import DEFAULT_RUN_S, SHAPES, chosen_shape
from moldau.loadtest.users.transactional import CommittedReader, TransactionalProducer
from moldau.loadtest.users.violations import violations
from moldau.ops.client import InvalidSecurity

__all__ = [
    "AdminUser",
    "ColdReader",
    "CommittedReader",
    "GroupChurn",
    "GroupMember",
    "Producer",
    "TailReader",
    "TransactionalProducer",
]

# Messages between the processes of locust: the master's request to finish, a worker's reply.
FINISH, FINISHED = "moldau-finish", "moldau-finished"
FINISH_TIMEOUT_S = 30.0

logger = logging.getLogger("moldau.loadtest")


# --- before the run ---


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _add_options(parser: Any) -> None:
    add_options(parser)


@events.init.add_listener  # type: ignore[untyped-decorator]
def _prepare(environment: Environment, **_: Any) -> None:
    # gevent's clock does not advance while modules are imported: -t would include that time.
    gevent.get_hub().loop.update_now()
    runner = environment.runner
    if isinstance(runner, WorkerRunner):
        runner.register_message(FINISH, _finish, concurrent=True)
    elif isinstance(runner, MasterRunner):
        runner.register_message(FINISHED, _note_finished)


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def _create_topic(environment: Environment, **_: Any) -> None:
    """Once, by the master or the only process; users wait for the topic."""
    violations.clear()
    if isinstance(environment.runner, WorkerRunner):
        return
    options: Any = environment.parsed_options
    try:
        security = security_of(options.command_config)
    except InvalidSecurity as error:
        _give_up(environment, f"--command-config {error}")
        return
    session = Session(bootstrap_of(environment), "load", lambda *request: None, security)
    try:
        session.create_topic(options.topic, options.partitions, TOPIC_CONFIGS)
    except REQUEST_ERRORS as error:
        _give_up(environment, f"{host_of(environment)}: no topic {options.topic}: {error}")
    finally:
        session.close()


def _give_up(environment: Environment, why: str) -> None:
    logger.error("%s", why)
    environment.process_exit_code = 1
    if environment.runner is not None:
        environment.runner.quit()


# --- after the run ---

_finished: set[str] = set()


@events.test_stop.add_listener  # type: ignore[untyped-decorator]
def _await_workers(environment: Environment, **_: Any) -> None:
    """Wait for the workers' users, who read back what they wrote; locust waits only 0.5 s."""
    runner = environment.runner
    if not isinstance(runner, MasterRunner):
        return
    _finished.clear()
    asked = set(runner.clients)
    runner.send_message(FINISH, None)
    deadline = time.monotonic() + FINISH_TIMEOUT_S
    while not asked <= _finished and time.monotonic() < deadline:
        gevent.sleep(0.05)


def _finish(environment: Environment, msg: Any) -> None:
    assert isinstance(environment.runner, WorkerRunner)
    environment.runner.stop()
    environment.runner.send_message(FINISHED, {"violations": list(violations)})


def _note_finished(environment: Environment, msg: Any) -> None:
    _finished.add(msg.node_id)
    violations.extend(msg.data["violations"])


@events.quitting.add_listener  # type: ignore[untyped-decorator]
def _judge(environment: Environment, **_: Any) -> None:
    if isinstance(environment.runner, WorkerRunner):
        return
    for violation in violations:
        print(f"CHECK FAILED {violation}", file=sys.stderr, flush=True)
    if violations:
        environment.process_exit_code = 1


# --- the shape ---

_SHAPE = chosen_shape(sys.argv, os.environ.get("MOLDAU_LOAD_SHAPE"))
if _SHAPE in SHAPES:  # locust uses every shape class it finds: there is no way to switch one off

    class ChosenShape(LoadTestShape):
        """The shape of users/shapes.py that --shape names."""

        use_common_options = True

        def tick(self) -> tuple[int, float] | None:
            assert self.runner is not None
            options: Any = self.runner.environment.parsed_options
            total = float(options.run_time or DEFAULT_RUN_S)
            elapsed: float = self.get_run_time()  # type: ignore[no-untyped-call]
            if elapsed >= total:
                return None
            users = SHAPES[_SHAPE or ""](elapsed, total, options.num_users or 1)
            return users, float(options.spawn_rate or users)
