"""A backup that is cut short, by a signal or a full disk: nothing is left that looks like one."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.ops.backup.manifest import APPEND_ONLY, MANIFEST
from tests.chaos.small_disk import MIB, SmallDisk, can_mount, small_disk
from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import MOLDAU, Broker, remove_dir, wait_until
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient, make_batch

Start = Callable[..., Broker]
TOPIC = "orders"
PATIENCE_S = 60.0


def fill(broker: Broker, megabytes: int) -> None:
    with RawClient(broker.processes("worker")[0]["port"]) as client:
        create_topic(client, TOPIC)
        batch = make_batch([(None, bytes(900_000), 1_000)])
        for _ in range(megabytes):
            assert client.produce(TOPIC, bytearray(batch)).error_code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_by_a_signal(start_moldau: Start, short_tmp_path: Path, number: signal.Signals) -> None:
    broker = start_moldau(workers=1)
    fill(broker, 100)
    target = short_tmp_path / "backup"
    for _ in range(20):  # until one was cut short
        process = subprocess.Popen(
            [*MOLDAU, "backup", str(target)],
            env=Cli(broker).env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A run in the background ignores SIGINT, and its children would too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        _until_it_copies(process, target)
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE_S)
        if process.returncode:
            break
        assert (target / MANIFEST).exists()
        remove_dir(target)
    assert process.returncode in (1, -signal.SIGKILL)
    if number is signal.SIGKILL:
        assert "is no backup" in Cli(broker).refused("backup", "verify", str(target))
        assert "is not empty" in Cli(broker).refused("backup", str(target))
    else:
        assert not target.exists()
        assert "nothing was kept" in said
        assert "Traceback" not in said
    assert Cli(broker).json("backup", str(short_tmp_path / "next"))["topics"] == 1


def test_by_a_full_disk(start_moldau: Start, short_tmp_path: Path) -> None:
    if not can_mount(short_tmp_path):
        pytest.skip("a tmpfs cannot be mounted here")
    broker = start_moldau(workers=1)
    fill(broker, 30)
    with small_disk(short_tmp_path / "small", 20 * MIB) as disk:
        said = Cli(broker).refused("backup", str(disk.path / "backup"))
        assert "are needed" in said
        assert not (disk.path / "backup").exists()
    with small_disk(short_tmp_path / "filled", 40 * MIB) as disk:
        told = threading.Event()
        filler = threading.Thread(target=_fill_while_copied, args=(disk, told))
        filler.start()
        said = Cli(broker).refused("backup", str(disk.path / "backup"))
        told.set()
        filler.join(PATIENCE_S)
        assert "the disk is full" in said or "are needed" in said
        assert said.count("\n") == 1
        assert not (disk.path / "backup").exists()


def _until_it_copies(process: subprocess.Popen[str], target: Path) -> None:
    folder = target / APPEND_ONLY
    wait_until(lambda: folder.is_dir() or process.poll() is not None, PATIENCE_S, "it copies")


def _fill_while_copied(disk: SmallDisk, told: threading.Event) -> None:
    while not told.is_set() and not (disk.path / "backup" / APPEND_ONLY).is_dir():
        time.sleep(0.001)
    disk.fill()
