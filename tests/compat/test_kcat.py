"""kcat, the command-line client, works unmodified where it is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from typing import Any

import pytest

from tests.support.brokers.running import Broker

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not installed")


def kcat(broker: Broker, *words: str, given: str = "") -> str:
    assert KCAT is not None
    done = subprocess.run(
        [KCAT, "-b", broker.bootstrap, *words],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def new_name() -> str:
    return f"kcat-{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("codec", CODECS)
def test_produce_and_consume(moldau: Broker, codec: str) -> None:
    topic = new_name()
    lines = [f"key-{number}:value {number}" for number in range(100)]

    kcat(moldau, "-P", "-t", topic, "-K:", "-z", codec, given="\n".join(lines))

    got = kcat(moldau, "-C", "-t", topic, "-e", "-q", "-o", "beginning", "-f", "%k:%s\\n")
    assert got.splitlines() == lines


def test_headers_tombstones_and_timestamps(moldau: Broker) -> None:
    topic = new_name()

    kcat(moldau, "-P", "-t", topic, "-K:", "-Z", "-H", "a=1", "-H", "b=ž", given="key:")

    (line,) = kcat(moldau, "-C", "-t", topic, "-e", "-q", "-J").splitlines()
    record: dict[str, Any] = json.loads(line)
    assert record["key"] == "key"
    assert record["payload"] is None
    assert record["headers"] == ["a", "1", "b", "ž"]
    assert record["tstype"] == "create"


def test_offsets(moldau: Broker) -> None:
    topic = new_name()
    kcat(moldau, "-P", "-t", topic, given="\n".join(str(number) for number in range(10)))

    def from_(offset: str) -> list[int]:
        got = kcat(moldau, "-C", "-t", topic, "-e", "-q", "-o", offset, "-f", "%o\\n")
        return [int(line) for line in got.splitlines()]

    assert from_("4") == [4, 5, 6, 7, 8, 9]
    assert from_("-3") == [7, 8, 9]
    assert from_("end") == []
    assert from_("s@0") == list(range(10))
    assert kcat(moldau, "-Q", "-t", f"{topic}:0:-1").strip() == f"{topic} [0] offset 10"
    assert kcat(moldau, "-Q", "-t", f"{topic}:0:-2").strip() == f"{topic} [0] offset 0"


def test_metadata(moldau: Broker) -> None:
    topic = new_name()
    kcat(moldau, "-P", "-t", topic, given="v")

    found: dict[str, Any] = json.loads(kcat(moldau, "-L", "-J"))

    ports = [moldau.port + 1, moldau.port + 2]
    assert found["brokers"] == [
        {"id": index, "name": f"127.0.0.1:{port}"} for index, port in enumerate(ports)
    ]
    partitions = {item["topic"]: len(item["partitions"]) for item in found["topics"]}
    assert partitions[topic] == 1
