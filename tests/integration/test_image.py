"""The image as its Containerfile describes it: read-only root, another user, no capabilities."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
import yaml

from tests.integration.wheel import install_in_venv
from tests.support.brokers.container import Container, Image, run_container, why_not
from tests.support.brokers.running import ROOT, remove_dir, short_temp_dir, wait_until

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no containers: {why_not()}")


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    made = short_temp_dir()
    made.chmod(0o755)  # for the user in the container
    yield made
    remove_dir(made)


@pytest.fixture(scope="module")
def opt(directory: Path) -> Path:
    """What stands for /opt/moldau."""
    installed = install_in_venv(directory).parent
    health = (ROOT / "ops/image/health.py").read_text().replace("/opt/moldau", str(installed))
    (installed / "bin/moldau-health").write_text(health)
    (installed / "bin/moldau-health").chmod(0o755)
    (directory / "data").mkdir()
    return installed


@pytest.fixture(scope="module")
def container(directory: Path, opt: Path) -> Iterator[Container]:
    volume = directory / "data"
    with run_container(Image(opt, volume), directory, opt, volume) as started:
        yield started
    assert "Traceback" not in started.log()


def test_it_is_not_root_and_may_do_nothing(container: Container) -> None:
    with container.process.oneshot():
        assert container.process.uids().effective == 10092
    for one in [container.process, *container.process.children(recursive=True)]:
        status = Path(f"/proc/{one.pid}/status").read_text()
        assert "CapEff:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
    done = container.execute("sh", "-c", "touch /tmp/file")
    assert "Read-only file system" in done.stderr


def test_clients_with_the_settings_that_it_writes(container: Container) -> None:
    where = ("--bootstrap", "localhost:9092", "--command-config", "security/client.properties")
    sent = container.execute("moldau", "produce", "greetings", *where, text="hello\n")
    assert sent.returncode == 0, sent.stderr
    read = container.execute("moldau", "consume", "greetings", *where)
    assert read.stdout == "hello\n", read.stderr
    # The operator needs no password inside.
    added = container.execute("moldau", "users", "add", "alice", "--generate")
    assert added.returncode == 0, added.stderr


def test_the_console_and_metrics(container: Container) -> None:
    program = (
        "import ssl, urllib.request as r; c = ssl.create_default_context(cafile='security/ca.pem')"
        "\nfor path in ('login', 'metrics'):"
        "\n    print(r.urlopen('https://localhost:8092/' + path, context=c).read().decode())"
    )
    done = container.execute("python", "-c", program)
    assert done.returncode == 0, done.stderr
    assert 'name="password"' in done.stdout
    assert "moldau_up{" in done.stdout


def test_its_health_is_that_of_the_store(container: Container) -> None:
    wait_until(lambda: container.health().returncode == 0, 60, "it is ready")
    (store,) = (one for one in container.process.children() if "valkey" in " ".join(one.cmdline()))
    os.kill(store.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: "store" in container.health().stderr, 60, "it says why not")
        assert container.health().returncode == 1
    finally:
        if psutil.pid_exists(store.pid):
            os.kill(store.pid, signal.SIGCONT)
    wait_until(lambda: container.health().returncode == 0, 60, "it is ready again")


def test_a_volume_that_belongs_to_the_group_only(directory: Path, opt: Path) -> None:
    """Kubernetes mounts a volume like that, by `fsGroup`."""
    volume = directory / "data"
    image = Image(opt, volume)
    owner = f"uid=0,gid={image.user},mode=2770"
    beside = directory / "beside"
    beside.mkdir()
    with run_container(image, beside, opt, volume, owner=owner) as started:
        wait_until(lambda: started.health().returncode == 0, 60, "it is ready")


def test_the_profile_for_development(directory: Path, opt: Path) -> None:
    """The compose file's has no TLS, no logins, and the console through a published port."""
    volume = directory / "data"
    image = Image(opt, volume)
    service = yaml.safe_load((ROOT / "ops/compose.yaml").read_text())["services"]["moldau-dev"]
    image.environment |= service["environment"]
    image.program = [image.program[0], *service["command"]]
    beside = directory / "development"
    beside.mkdir()
    program = (
        "import urllib.error, urllib.request as r"
        "\nfor name in ('localhost:8092', 'other.example'):"
        "\n    ask = r.Request('http://127.0.0.1:8092/topics', headers={'Host': name})"
        "\n    try: print(r.urlopen(ask).status)"
        "\n    except urllib.error.HTTPError as error: print(error.code)"
    )
    with run_container(image, beside, opt, volume) as started:
        wait_until(lambda: started.health().returncode == 0, 60, "it is ready")
        assert started.execute("python", "-c", program).stdout == "200\n403\n"
        sent = started.execute(
            "moldau", "produce", "greetings", "--bootstrap", "localhost:9092", text="hello\n"
        )
        assert sent.returncode == 0, sent.stderr


def test_everything_that_is_copied_exists() -> None:
    text = (ROOT / "ops/Containerfile").read_text()
    copied = [
        word
        for line in text.splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    ]
    assert "moldau" in copied
    assert all((ROOT / word).exists() for word in copied)
