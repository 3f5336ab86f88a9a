"""Fixtures for every test: a running broker, a way to start more of them, and a Redis."""

import asyncio
import contextlib
import gc
import inspect
from collections.abc import Callable, Coroutine, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

# How long an example takes says how busy the machine is, and nothing about the code.
# Every run draws other examples, so half of the default number finds the same faults, a day later.
settings.register_profile(
    "busy", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50
)
settings.load_profile("busy")

# Before anything imports them: what they assert is shown as a test's own would be.
pytest.register_assert_rewrite("tests.support.compat", "tests.support.clients")

from moldau.testing.serve import BrokerFailed  # noqa: E402
from tests.support.brokers.certificates import Certificates, make_certificates  # noqa: E402
from tests.support.brokers.running import (  # noqa: E402
    Broker,
    remove_dir,
    running_broker,
    short_temp_dir,
)
from tests.support.brokers.running import fresh_processes as fresh  # noqa: E402
from tests.support.stores.redis_server import RedisServer, running_redis  # noqa: E402

HERE = Path(__file__).parent


class FilesAndOneSpark(LoadFileScheduling):  # type: ignore[misc]
    """Distribution for `-n`: a file's tests stay in one process, all that use `spark` in one.

    The other tests of the pipeline start Spark themselves, and can run anywhere. The long files of
    `unit/wire` share nothing: each of their functions is on its own.
    """

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        if scope.startswith("tests/unit/wire/"):
            return nodeid.split("[")[0]
        return "pipeline" if scope in _with_spark() else scope


@cache
def _with_spark() -> frozenset[str]:
    files = HERE.glob("pipeline/test_*.py")
    return frozenset(
        file.relative_to(HERE.parent).as_posix() for file in files if "spark:" in file.read_text()
    )


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> FilesAndOneSpark:
    config.option.loadscopereorder = False  # in the order below, not by number of tests
    return FilesAndOneSpark(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that short tests fill what is left of the time."""
    items.sort(key=lambda item: _turn(item.path.relative_to(HERE).parts))


def _turn(parts: tuple[str, ...]) -> int:
    if parts[0] == "pipeline":
        return 0
    if parts[0] != "unit":
        return 1
    return 2 if parts[1] == "wire" else 3


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, on a loop of its own, as `uvloop.run` runs a worker."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {
        name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters
    }
    run = asyncio.run if pyfuncitem.get_closest_marker("stdlib_loop") else uvloop.run
    run(_in_time(pyfuncitem, pyfuncitem.obj(**arguments)))
    return True


async def _in_time(pyfuncitem: pytest.Function, test: Coroutine[Any, Any, None]) -> None:
    """A little less than pytest-timeout gives it, whose exception uvloop logs and forgets."""
    marker = pyfuncitem.get_closest_marker("timeout")
    seconds = float(marker.args[0] if marker else pyfuncitem.config.getini("timeout"))
    async with asyncio.timeout(0.9 * seconds):
        await test


@pytest.fixture(scope="session")
def moldau() -> Iterator[Broker]:
    """A broker with two workers, shared by the tests of one process.

    Tests leave it running and name their topics and groups uniquely. All settings are defaults but
    two: retention does not run, as it would remove records that tests produce with old timestamps;
    and a new group does not wait three seconds for more members. Its processes are fresh ones, as
    most that tests start for themselves are not.
    """
    settings = {
        "log.retention.check.interval.ms": 86_400_000,
        "group.initial.rebalance.delay.ms": 100,
    }
    with contextlib.ExitStack() as stack:
        with fresh():
            broker = stack.enter_context(running_broker(unsaid=(), workers=2, broker=settings))
        yield broker
        # Clients that wait for the garbage collector would go on trying to connect.
        gc.collect()


@pytest.fixture(scope="module")
def fresh_processes() -> Iterator[None]:
    """Start every process fresh, in modules about how processes start and die."""
    with fresh():
        yield


@pytest.fixture
def short_tmp_path() -> Iterator[Path]:
    """A temporary directory with a name short enough for unix sockets."""
    directory = short_temp_dir()
    yield directory
    remove_dir(directory)


@pytest.fixture
def start_moldau(short_tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Start a broker of the test's own: `start_moldau(workers=1, broker={…}) -> Broker`.

    Each has its own directory unless `data_dir` names another's. All are stopped afterwards.
    """
    started: list[Broker] = []

    def start(**options: object) -> Broker:
        directory = short_tmp_path / f"serve-{len(started)}"
        broker = Broker.start(directory, **options)  # type: ignore[arg-type]
        started.append(broker)
        return broker

    yield start
    failures: list[Exception] = []
    for broker in started:
        try:
            broker.stop()
        except (AssertionError, BrokerFailed) as failure:  # the others still have to be stopped
            failures.append(failure)
    if failures:
        raise failures[0]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A CA, a server's certificate and a client's, as files."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis without a broker, for the tests of one module: they name their keys uniquely."""
    with running_redis(tmp_path_factory.mktemp("redis")) as started:
        yield started
