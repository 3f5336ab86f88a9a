"""What the load test does around its users: options, the topic, the verdict.

Not imported by `locust -f loadtest` by itself (the name begins with an underscore), so that the
listeners are registered once: by the import in locustfile.py.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

import gevent
from locust import events
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from broker.wire.codecs import CODEC_NAMES
from loadtest.users.client.session import Fault, Session
from loadtest.users.shapes import SHAPES
from ops.client import parse_address

DEFAULT_HOST = "127.0.0.1:9092"
MOST_TOLD = 20  # violations of one process; a broken log would tell of every record
FINISH, FINISHED = "moldau-finish", "moldau-finished"  # between the processes of locust
FINISH_PATIENCE_S = 30.0
TOPIC_CONFIGS = {"retention.bytes": str(64 << 20), "segment.bytes": str(8 << 20)}

violations: list[str] = []  # found by this process, or told to it
_log = logging.getLogger(__name__)


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _add_arguments(parser: Any) -> None:
    def add(name: str, **options: Any) -> None:
        variable = f"MOLDAU_LOAD_{name.upper().replace('-', '_')}"
        parser.add_argument(f"--{name}", env_var=variable, **options)

    add("topic", default="moldau-load", help="created unless it is there; only for load tests")
    add("partitions", type=int, default=8, help="of the topic, when it is created")
    add("batch-bytes", type=int, default=4000, help="of a Produce request, before compression")
    add("record-bytes", type=int, default=1000, help="of a record's value")
    add("codec", choices=sorted(CODEC_NAMES), default="none")
    add("acks", choices=["all", "1", "0"], default="all")
    add("idempotent", choices=["yes", "no"], default="yes", help="needs acks=all")
    add("rate", type=float, default=5.0, help="requests a second of each user, on a schedule")
    add("fetch-bytes", type=int, default=128 << 10, help="at most, of a Fetch")
    add("group", default="moldau-load", help="what the groups' names begin with")
    add("groups", type=int, default=4, help="how many the GroupMembers are spread over")
    add("session-ms", type=int, default=10_000, help="session timeout of members")
    add("heartbeat-ms", type=int, default=1000, help="between heartbeats of a member")
    add("lifetime", type=float, default=8.0, help="seconds a GroupChurn stays, on average")
    add("shape", choices=sorted(SHAPES), help="of the load; -u users at most, -t seconds in all")


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def _create_topic(environment: Environment, **_: Any) -> None:
    """Once, by whoever is in charge; users wait for it."""
    violations.clear()
    if isinstance(environment.runner, WorkerRunner):
        return
    options: Any = environment.parsed_options
    session = Session(bootstrap_of(environment), "load", lambda *told: None)
    try:
        session.create_topic(options.topic, options.partitions, TOPIC_CONFIGS)
    except Fault as fault:
        _log.error("%s: no topic %s: %s", _host(environment), options.topic, fault)
        environment.process_exit_code = 1
        if environment.runner is not None:
            environment.runner.quit()
    finally:
        session.close()


@events.init.add_listener  # type: ignore[untyped-decorator]
def _prepare(environment: Environment, **_: Any) -> None:
    # The event loop's clock stands while modules are imported: -t would begin with that.
    gevent.get_hub().loop.update_now()
    runner = environment.runner
    if isinstance(runner, WorkerRunner):
        runner.register_message(FINISH, _finish, concurrent=True)
    elif isinstance(runner, MasterRunner):
        runner.register_message(FINISHED, _note_finished)


_finished: set[str] = set()


@events.test_stop.add_listener  # type: ignore[untyped-decorator]
def _await_workers(environment: Environment, **_: Any) -> None:
    """Users look at what they wrote when they stop; locust itself waits half a second for that."""
    runner = environment.runner
    if not isinstance(runner, MasterRunner):
        return
    _finished.clear()
    asked = set(runner.clients)
    runner.send_message(FINISH, None)
    deadline = time.monotonic() + FINISH_PATIENCE_S
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


def _host(environment: Environment) -> str:
    host = environment.host or os.environ.get("MOLDAU_BOOTSTRAP") or DEFAULT_HOST
    return host.rpartition("://")[2].rstrip("/")  # the web form may put a scheme before it


def bootstrap_of(environment: Environment) -> tuple[str, int]:
    return parse_address(_host(environment))


def note(violation: str) -> bool:
    """Keep what is wrong with a record for the verdict; False: enough is known."""
    if len(violations) >= MOST_TOLD:
        return False
    violations.append(violation)
    return True
