"""CPU and memory of processes, of real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from moldau.loadtest.bench.harness.measure import CpuMeter, resident_bytes, with_descendants

# A process, its child and grandchild; each prints its pid, the last one waits for its input to end.
FAMILY = """
import os, subprocess, sys
print(os.getpid(), flush=True)
if int(sys.argv[1]):
    subprocess.run([sys.executable, "-c", sys.argv[2], str(int(sys.argv[1]) - 1), sys.argv[2]])
else:
    sys.stdin.read()
"""
# Does one piece of work for each line of input, and answers with an empty line.
BUSY = """
import sys
for _ in sys.stdin:
    sum(range(3_000_000))
    print(flush=True)
"""


def _started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _end(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=30)


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[str]]:
    process = _started(BUSY)
    yield process
    _end(process)


def _work(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    process.stdout.readline()


def test_descendants_of_every_generation_are_found() -> None:
    first = _started(FAMILY, "2", FAMILY)
    assert first.stdout is not None
    family = [int(first.stdout.readline()) for _ in range(3)]

    assert family[0] == first.pid
    assert with_descendants([first.pid]) == sorted(family)
    assert with_descendants([first.pid, family[1]]) == sorted(family)  # each once
    assert set(family) < set(with_descendants([os.getpid()]))
    assert with_descendants([family[2]]) == [family[2]]
    _end(first)


def test_a_process_that_is_not_there_has_no_descendants() -> None:
    gone = _started("")
    _end(gone)
    with pytest.raises(ProcessLookupError, match=str(gone.pid)):
        with_descendants([gone.pid])


def test_cpu_is_that_of_the_processes_of_a_role(busy: subprocess.Popen[str]) -> None:
    idle = _started(BUSY)
    _work(idle)
    _work(busy)
    meter = CpuMeter({"one": [busy.pid], "both": [busy.pid, idle.pid], "none": []})
    _work(busy)
    used = meter.stop()
    _end(idle)

    assert used["one"] > 0.001
    assert used["one"] == pytest.approx(used["both"], rel=0.1)
    assert used["none"] == 0
    assert used["one kernel"] >= 0


def test_a_process_that_ends_while_it_is_measured_does_no_harm(
    busy: subprocess.Popen[str],
) -> None:
    ending = _started(BUSY)
    _work(ending)
    _work(busy)
    pids = [ending.pid, busy.pid]
    both = resident_bytes(pids)
    meter = CpuMeter({"all": pids})
    _end(ending)
    _work(busy)

    assert meter.stop()["all"] > 0.001
    assert 0 < resident_bytes(pids) < both
