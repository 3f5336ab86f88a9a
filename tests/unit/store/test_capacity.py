"""How much the store can hold: the smallest of memory, container and disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moldau.broker.store.capacity import Capacity, of_server, of_this_machine, smallest

MEBI = 1 << 20


def test_the_smallest_total_and_the_smallest_rest_count() -> None:
    assert smallest([]) == (-1, -1)
    assert smallest([Capacity(100, 10), Capacity(50, 40)]) == (50, 10)
    assert smallest([Capacity(100, -5)]) == (100, 0)  # more is used than the limit allows


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({b"maxmemory": b"1000", b"used_memory": b"400"}, [(1000, 600)]),
        (
            {b"maxmemory": b"0", b"used_memory": b"400", b"total_system_memory": b"9000"},
            [(9000, 8600)],
        ),
        ({b"used_memory": b"400"}, []),
    ],
)
def test_what_a_server_says(info: dict[bytes, bytes], expected: list[Capacity]) -> None:
    assert of_server(info) == expected


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    made = tmp_path / "proc"
    (made / "self").mkdir(parents=True)
    (made / "meminfo").write_text(
        "MemTotal:       2048 kB\nMemFree:        1 kB\nMemAvailable:   1024 kB\n"
    )
    return made


def group(path: Path, **files: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)


def test_without_control_groups_memory_and_disk_are_known(proc: Path, tmp_path: Path) -> None:
    memory, disk = of_this_machine(tmp_path, proc, tmp_path / "none")
    assert memory == (2 * MEBI, MEBI)
    seen = os.statvfs(tmp_path)
    assert disk.total == seen.f_blocks * seen.f_frsize
    assert 0 < disk.usable <= disk.total


def test_every_control_group_around_the_process_counts(proc: Path, tmp_path: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/pods/one\n")
    root = tmp_path / "cgroup"
    group(root)  # the machine's own has no limit
    group(
        root / "pods",
        memory__max="500000",
        memory__current="450000",
        memory__stat="anon 1\ninactive_file 20000\n",
    )
    group(root / "pods" / "one", memory__max="max", memory__current="1", memory__stat="")
    assert (500_000, 70_000) in of_this_machine(tmp_path, proc, root)
    assert len(of_this_machine(tmp_path, proc, root)) == 3


def test_the_first_version_of_control_groups(proc: Path, tmp_path: Path) -> None:
    (proc / "self" / "cgroup").write_text("5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n")
    group(
        tmp_path / "cgroup" / "memory" / "a",
        memory__limit_in_bytes="800000",
        memory__usage_in_bytes="100000",
        memory__stat="inactive_file 5\ntotal_inactive_file 1000\n",
    )
    assert (800_000, 701_000) in of_this_machine(tmp_path, proc, tmp_path / "cgroup")


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    assert of_this_machine(tmp_path / "gone", tmp_path / "no-proc", tmp_path / "none") == []
