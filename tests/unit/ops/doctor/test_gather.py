"""What `moldau doctor` reads of this machine."""

import os
import socket
from pathlib import Path

import pytest

from moldau.broker.settings.loading import load_settings
from moldau.ops.doctor.gather import disk_of, gather
from moldau.testing.ports import free_ports
from tests.support.stores.redis_server import RedisServer

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
nas:/data /tmp/with\\040space nfs4 rw 0 0
"""


def test_the_disk_of_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nnas:/d {tmp_path.resolve()} nfs4 rw 0 0\n")
    found = disk_of(str(tmp_path / "a" / "b"), mounts)
    assert found is not None
    assert (found.path, found.kind) == (str(tmp_path), "nfs4")
    assert 0 <= found.free <= found.total


def test_the_longest_mount_point_counts(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    found = disk_of("/usr", mounts)
    assert found is not None
    assert found.kind == "ext4"


def test_this_machine(tmp_path: Path) -> None:
    port = free_ports(2)
    flags = {"port": str(port), "workers": "1", "data_dir": str(tmp_path), "http": "off"}
    facts = gather(load_settings(flags, {}), {})
    assert facts.open_files
    assert facts.memory
    assert facts.disk is not None
    assert facts.ports == ()
    assert not facts.is_running
    assert facts.advertised[0].addresses == ("127.0.0.1",)
    assert facts.is_root == (os.getuid() == 0)


def test_a_port_in_use_and_a_store_that_does_not_answer(tmp_path: Path) -> None:
    port = free_ports(2)
    with socket.create_server(("127.0.0.1", port + 1)):
        flags = {"port": str(port), "workers": "1", "redis": "redis://:secret@127.0.0.1:1"}
        facts = gather(load_settings({**flags, "http": "off"}, {}), {})
    assert len(facts.ports) == 1
    assert str(port + 1) in facts.ports[0]
    assert facts.store is not None
    assert facts.store.problem
    assert "secret" not in facts.store.problem + facts.store.where


def test_a_store_that_answers(server: RedisServer) -> None:
    flags = {"port": str(free_ports(2)), "workers": "1", "redis": server.url, "http": "off"}
    store = gather(load_settings(flags, {}), {}).store
    assert store is not None
    assert not store.problem
    assert store.ahead_s == pytest.approx(0, abs=1)
    assert store.info["role"] == "master"
    assert "appendfsync" in store.config
