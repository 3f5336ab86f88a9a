"""`moldau top`: of a real broker, printed and on a screen."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import time

from confluent_kafka import Producer

from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import MOLDAU, Broker


def test_once_for_scripts_and_for_people(moldau: Broker, cli: Cli, name: str) -> None:
    producer = Producer({"bootstrap.servers": moldau.bootstrap})
    producer.produce(name, b"x")
    assert producer.flush(30) == 0
    found = cli.json("top", "--once", "--interval", "300ms")
    roles = {each["role"] for each in found["processes"]}
    assert roles >= {"supervisor", "router", "worker", "store"}
    assert all(each["memory_bytes"] > 0 for each in found["processes"])
    assert {each["topic"] for each in found["topics"]} >= {name}
    assert found["store"]["memory_bytes"] > 0
    assert found["problems"] == []
    printed = cli("top", "--once", "--interval", "300ms")
    assert printed.returncode == 0, printed.stderr
    assert "worker 0" in printed.stdout


def test_a_line_of_json_every_interval(cli: Cli) -> None:
    command = [*MOLDAU, "top", "--json", "--interval", "200ms"]
    with subprocess.Popen(command, env=cli.env, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        lines = [json.loads(running.stdout.readline()) for _ in range(2)]
        running.terminate()
    assert all(each["processes"] for each in lines)


def test_on_a_screen_until_q_is_pressed(cli: Cli) -> None:
    master, slave = pty.openpty()
    env = {**cli.env, "TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    command = [*MOLDAU, "top", "--interval", "200ms"]
    with subprocess.Popen(command, env=env, stdin=slave, stdout=slave, stderr=slave) as running:
        os.close(slave)
        seen = b""
        until = time.monotonic() + 60
        while seen.count(b"worker 0") < 2 and time.monotonic() < until:
            if select.select([master], [], [], 1)[0]:
                seen += os.read(master, 65536)
        os.write(master, b"q")
        while running.poll() is None and time.monotonic() < until:
            if select.select([master], [], [], 0.1)[0]:  # it writes to the end
                try:
                    seen += os.read(master, 65536)
                except OSError:  # Linux, when the other side is closed
                    break
        assert running.wait(30) == 0
    os.close(master)
    assert b"loop lag" in seen
    assert b"Traceback" not in seen


def test_no_broker(cli: Cli) -> None:
    assert "no broker" in cli.refused("top", "--port", "1")
    assert cli("top", "--interval", "1ms").returncode == 2
