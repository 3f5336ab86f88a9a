"""Backups of a running broker: nothing acknowledged before is missing, and no offset names two
records, although the broker went on after the backup."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from moldau.broker.errors import ErrorCode
from moldau.testing import BrokerFailed
from tests.support.brokers.moldau_cli import Cli, OperatorCli
from tests.support.brokers.native import Native
from tests.support.brokers.running import MOLDAU, Broker, wait_until
from tests.support.brokers.secured import librdkafka_settings
from tests.support.proofs.hammer import worker_ports
from tests.support.proofs.observed_producer import ObservedProducer, new_producer_id
from tests.support.proofs.observer import Observer, View, read_epochs, until_answered
from tests.support.raw.calls import (
    EARLIEST,
    create_topic,
    delete_topic,
    list_offset,
    read_all,
    worker_clients,
)
from tests.support.raw.client import RawClient, batches_in
from tests.support.raw.committed import READ_COMMITTED, await_stable, visible
from tests.support.raw.group import RawMember, coordinator_port
from tests.support.raw.transactions import RawProducer

Start = Callable[..., Broker]
TOPIC = "orders"
QUICK = {"group.initial.rebalance.delay.ms": 0}
PATIENCE_S = 60.0


class Load:
    """Producers at every worker, idempotent and plain, until told to stop."""

    def __init__(self, observer: Observer, names: Iterator[int], size: int = 200) -> None:
        self._observer, self._size = observer, size
        self._told = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce, args=(port, f"p{next(names)}", idempotent))
            for port in observer.ports
            for idempotent in (True, False)
        ]

    def _produce(self, port: int, name: str, idempotent: bool) -> None:
        number = new_producer_id(port) if idempotent else -1
        producer = ObservedProducer(self._observer, name, number)
        while not self._told.is_set():
            producer.send(port, 3, size=self._size)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._told.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def wait(self, more: int) -> None:
        wanted = self._observer.count() + more
        wait_until(lambda: self._observer.count() >= wanted, PATIENCE_S, f"{more} records more")


class Scene:
    """A broker, everything that was learned of one topic, and brokers restored from its backups."""

    def __init__(self, start: Start, directory: Path, **options: object) -> None:
        self._start, self._options = start, {"workers": 2, "broker": QUICK, **options}
        self.directory = directory
        self.broker = start(**self._options)
        self.observer = Observer(worker_ports(self.broker), TOPIC)
        self._names = itertools.count()
        with RawClient(self.observer.ports[0]) as client:
            create_topic(client, TOPIC)

    def load(self, size: int = 200) -> Load:
        return Load(self.observer, self._names, size)

    def backup(self, name: str = "backup") -> Path:
        directory = self.directory / name
        Cli(self.broker).json("backup", str(directory))
        return directory

    def verify(self, backup: Path) -> dict[str, object]:
        document = Cli(self.broker).json("backup", "verify", str(backup))
        assert document["good"], document
        found: dict[str, object] = document["backup"]
        return found

    def restore(self, backup: Path, name: str = "restored") -> Path:
        data_dir = self.directory / name
        document = Cli(self.broker).json("restore", str(backup), "--data-dir", str(data_dir))
        assert document["next"][:4] == ["moldau", "serve", "--data-dir", str(data_dir)]
        return data_dir

    def start_restored(self, data_dir: Path) -> Broker:
        self.broker = self._start(data_dir=data_dir, **self._options)
        self.observer.ports[:] = worker_ports(self.broker)
        return self.broker

    def check(self) -> View:
        until_answered(self.observer.ports, TOPIC)
        (view,) = self.observer.check(self.broker.store_url, may_lose=True)
        return view


@pytest.fixture
def scene(start_moldau: Start, short_tmp_path: Path) -> Scene:
    return Scene(start_moldau, short_tmp_path)


def test_under_load_everything_is_killed_and_no_offset_names_two_records(scene: Scene) -> None:
    observer = scene.observer
    survivor = ObservedProducer(observer, "survivor", new_producer_id(observer.ports[0]))
    survivor.send(observer.ports[0], 5)
    with scene.load() as load:
        load.wait(300)
        before = observer.known_records()
        backup = scene.backup()
        load.wait(300)
        survivor.send(observer.ports[1], 5)
        # A killed broker must not be asked: its producers end first.
    found = scene.verify(backup)
    assert found["topics"][0]["partitions"][0]["records"] >= len(before)  # type: ignore[index]
    scene.broker.kill_everything()
    observer.lost_something()
    data_dir, other = scene.restore(backup), scene.restore(backup, "elsewhere")

    scene.start_restored(data_dir)
    with scene.load() as load:
        load.wait(100)
        # A producer that lived on does not know that what it sent last is gone.
        survivor.send(observer.ports[0], 5)
    view = scene.check()
    there = {record.offset: record.digest for record in view.records}
    assert all(there.get(offset) == digest for offset, digest in before.items())
    (epoch,) = read_epochs(scene.broker.store_url, TOPIC, 0)
    lost = set(observer.known_records()) - set(there)
    assert lost, "the broker went on after the backup"
    assert epoch.start > max(lost) + 1_000_000_000

    # A restart of the restored broker costs nothing more.
    assert scene.broker.stop() == 0
    scene.start_restored(data_dir)
    assert scene.check() == view

    assert scene.broker.stop() == 0
    scene.start_restored(other)
    until_answered(observer.ports, TOPIC)
    (elsewhere, _) = observer.look()[0]
    copied = {record.offset: record.digest for record in elsewhere.records}
    (other_epoch,) = read_epochs(scene.broker.store_url, TOPIC, 0)
    assert copied.pop(other_epoch.start), "the control record with which the epoch begins"
    assert copied == {at: digest for at, digest in there.items() if at < epoch.start}


def test_clients_that_read_to_the_end_come_to_it(scene: Scene) -> None:
    """No record was added since, and a client that does not know of gaps waits for none."""
    producer = ObservedProducer(scene.observer, "one")
    producer.send(scene.observer.ports[0], 5)
    with RawClient(scene.observer.ports[0]) as client:
        create_topic(client, "empty")
    backup = scene.backup()
    assert scene.broker.stop() == 0
    broker = scene.start_restored(scene.restore(backup))
    assert "may have lost" not in broker.log(), "the copy is whole"
    for topic, begins in (TOPIC, [0, 3, 5]), ("empty", [0]):
        for at in begins:
            left = 5 - at if topic == TOPIC else 0
            assert len(read_to_end(broker.bootstrap, topic, at)) == left


def read_to_end(bootstrap: str, topic: str, offset: int) -> list[bytes | None]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "x", "enable.partition.eof": True}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        values: list[bytes | None] = []
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"{topic} does not come to its end from {offset} on"
            if message.error():
                return values
            values.append(message.value())
    finally:
        consumer.close()


def test_while_the_file_is_rewritten_all_the_time(scene: Scene) -> None:
    told = threading.Event()

    def rewrite() -> None:
        with redis.from_url(scene.broker.store_url) as store:
            while not told.is_set():
                with contextlib.suppress(redis.ResponseError):  # one is under way
                    store.bgrewriteaof()
                time.sleep(0.01)

    rewriting = threading.Thread(target=rewrite)
    with scene.load(size=5_000) as load:
        load.wait(300)
        rewriting.start()
        backups = []
        for number in range(4):
            before = scene.observer.known_records()
            backups.append((scene.backup(f"backup-{number}"), before))
            load.wait(50)
        told.set()
        rewriting.join(PATIENCE_S)
    for backup, before in backups:
        found = scene.verify(backup)
        partition = found["topics"][0]["partitions"][0]  # type: ignore[index]
        assert partition["end"] == partition["records"] > max(before)


def test_while_topics_are_created_and_deleted(scene: Scene) -> None:
    told = threading.Event()

    def change() -> None:
        with RawClient(worker_ports(scene.broker)[0]) as client:
            for number in itertools.count():
                if told.is_set():
                    return
                create_topic(client, f"topic-{number}", partitions=3)
                if number % 2:
                    delete_topic(client, f"topic-{number}")

    changing = threading.Thread(target=change)
    changing.start()
    backups = [scene.backup(f"backup-{number}") for number in range(3)]
    told.set()
    changing.join(PATIENCE_S)
    for backup in backups:
        scene.verify(backup)


def test_groups_and_transactions(scene: Scene, start_moldau: Start) -> None:
    broker = scene.broker
    with contextlib.ExitStack() as stack:
        member = stack.enter_context(RawMember(coordinator_port(broker, "readers"), "readers"))
        member.enter()
        done = stack.enter_context(RawProducer(broker, "done", direct=True)).begin()
        left = stack.enter_context(RawProducer(broker, "open", direct=True)).begin()
        done.write(TOPIC, b"committed 1", b"committed 2")
        done.finish(commit=True)
        left.write(TOPIC, b"open 1")
        assert member.commit(TOPIC, 1) == 0
        backup = scene.backup()

        left.write(TOPIC, b"open 2")
        left.write_offset("others", TOPIC, 5)
        left.finish(commit=True)
        done.write(TOPIC, b"later")
        done.finish(commit=True)
        assert member.commit(TOPIC, 2) == 0
        with RawClient(broker.processes("worker")[0]["port"]) as client:
            await_stable(client, TOPIC, 8)
        generation, identity = member.generation, (left.producer_id, left.epoch)
    found = scene.verify(backup)
    assert (found["groups"], found["transactional_ids"]) == (1, 2)
    assert found["open_transactions"] == 1
    broker.kill_everything()

    scene.start_restored(scene.restore(backup))
    broker = scene.broker
    with contextlib.ExitStack() as stack:
        again = stack.enter_context(RawMember(coordinator_port(broker, "readers"), "readers"))
        assert again.committed(TOPIC) == 1
        again.enter()
        assert again.generation > generation
        late = stack.enter_context(RawProducer(broker, "open", direct=True))
        late._go_on_as(*identity)
        wait_until(
            lambda: (
                late.end(commit=True).error_code
                not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS)
            ),
            PATIENCE_S,
            "the coordinator is loaded",
        )
        assert late.end(commit=True).error_code in (
            ErrorCode.PRODUCER_FENCED,
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        )
        left = stack.enter_context(RawProducer(broker, "open", direct=True)).begin()
        assert left.producer_id != identity[0]
        left.write(TOPIC, b"new")
        left.finish(commit=True)
        client = stack.enter_context(RawClient(worker_ports(broker)[0]))
        expected = [b"committed 1", b"committed 2", b"new"]
        wait_until(
            lambda: committed_values(client, TOPIC) == expected, PATIENCE_S, f"{expected} are read"
        )


def committed_values(client: RawClient, topic: str) -> list[bytes | None]:
    """What a read_committed consumer gets; a gap at the end is passed over."""
    values: list[bytes | None] = []
    offset = 0
    while True:
        answer = client.fetch(topic, offset, isolation_level=READ_COMMITTED)
        assert answer.error_code == 0, answer
        if not batches_in(answer):
            return values
        values += [value for _, value in visible(answer, offset)]
        offset = last_offset(answer) + 1


def last_offset(answer: object) -> int:
    from moldau.broker.wire.batch import read_header

    return read_header(batches_in(answer)[-1]).next_offset - 1  # type: ignore[arg-type]


def test_a_native_topic(scene: Scene) -> None:
    native = Native(scene.broker)
    kept = native.add("one", "two")
    backup = scene.backup()
    lost = native.add("three")
    native.close()
    found = {topic["name"]: topic for topic in scene.verify(backup)["topics"]}  # type: ignore[attr-defined]
    assert found[native.name]["partitions"][0]["records"] == 2
    scene.broker.kill_everything()
    scene.start_restored(scene.restore(backup))
    with redis.from_url(scene.broker.store_url) as store:
        assert [at for at, _ in store.xrange(native.key())] == kept
        (new,) = [store.xadd(native.key(), {"value": "four"})]
        assert int(new.split(b"-")[0]) > int(lost[0].split(b"-")[0])
    with worker_clients(scene.broker) as clients:
        for client in clients:
            start = list_offset(client, native.name, EARLIEST).offset
            values = [record.value for record in read_all(client, native.name, start)]
            assert values == [b"one", b"two", b"four"]


def test_a_secure_broker_comes_back_with_its_users_and_keys(
    start_moldau: Start, short_tmp_path: Path
) -> None:
    broker = start_moldau(workers=1, secure="true")
    cli = OperatorCli(broker)
    assert cli("users", "add", "alice", "--password-stdin", typed="wonderland\n").returncode == 0
    assert cli("acls", "add", "--user", "alice", "--producer", "--topic", TOPIC).returncode == 0
    backup, data_dir = short_tmp_path / "backup", short_tmp_path / "restored"
    cli.json("backup", str(backup))
    for path in (backup, *backup.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
    secrets = {path.name: path.read_bytes() for path in (broker.data_dir / "security").iterdir()}
    broker.kill_everything()
    done = cli.json("restore", str(backup), "--data-dir", str(data_dir))
    assert done["next"][-1] == "--secure"
    for path in data_dir.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    restored = {path.name: path.read_bytes() for path in (data_dir / "security").iterdir()}
    old, new = (bytes(path / "security" / "ca.pem") for path in (broker.data_dir, data_dir))
    for name in ("client.properties", "librdkafka.properties"):
        assert old in secrets[name]
        secrets[name] = secrets[name].replace(old, new)  # else no client could log in elsewhere
    assert restored == secrets

    broker = start_moldau(workers=1, secure="true", data_dir=data_dir)
    found = OperatorCli(broker).json("users", "list")
    assert "alice" in str(found)
    settings = librdkafka_settings(broker, sasl_username="alice", sasl_password="wonderland")
    assert AdminClient({**settings}).list_topics(timeout=PATIENCE_S).brokers


def test_an_archive_on_standard_output(scene: Scene) -> None:
    producer = ObservedProducer(scene.observer, "one")
    producer.send(scene.observer.ports[0], 5)
    directory, archive = scene.directory / "unpacked", scene.directory / "backup.tar"
    words, env = [*MOLDAU, "backup", "-"], Cli(scene.broker).env
    with archive.open("wb") as out:
        subprocess.run(words, env=env, stdout=out, check=True, timeout=PATIENCE_S)
    with tarfile.open(archive) as found:
        names = found.getnames()
        assert names[-1] == "manifest.json"
        assert {member.mode for member in found.getmembers()} == {0o600}
        found.extractall(directory, filter="data")
    verified = scene.verify(directory)
    assert verified["topics"][0]["partitions"][0]["records"] == 5  # type: ignore[index]
    scene.restore(directory)
    # A reader that goes away ends it, in one line.
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as one:
        assert one.stdout is not None
        one.stdout.close()
        assert one.stderr is not None
        said = one.stderr.read().decode()
        assert one.wait(PATIENCE_S) == 1
    assert said == "moldau: standard output: Broken pipe; nothing was kept of the backup\n"
    assert Cli(scene.broker)("backup", "-", "--every", "1h").returncode == 2


# --- on a schedule ---


def test_every_so_often_until_sigterm(scene: Scene) -> None:
    directory = scene.directory / "backups"
    with subprocess.Popen(
        [*MOLDAU, "backup", str(directory), "--every", "100ms", "--keep", "2", "--json"],
        env=Cli(scene.broker).env,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for _ in range(4):
            assert process.stdout.readline().strip() == "{"
            while process.stdout.readline().strip() != "}":
                pass
        second = Cli(scene.broker).refused("backup", str(directory), "--every", "1h")
        assert f"process {process.pid} takes backups there" in second
        process.terminate()
        process.stdout.read()
        assert process.wait(PATIENCE_S) == 0
    kept = [path for path in directory.iterdir() if path.is_dir()]
    assert 1 <= len(kept) <= 2
    for path in kept:
        scene.verify(path)


# --- what is refused ---


def test_what_a_backup_cannot_be_written_to(scene: Scene) -> None:
    cli, directory = Cli(scene.broker), scene.directory
    (directory / "file").write_text("mine")
    (directory / "full").mkdir()
    (directory / "full" / "mine").write_text("mine")
    for target, text in (
        (directory / "file", "File exists"),
        (directory / "file" / "below", "Not a directory"),
        (directory / "full", "is not empty"),
        (Path("/proc/moldau"), "choose another directory"),
    ):
        said = cli.refused("backup", str(target))
        assert said.startswith("moldau: ")
        assert text in said, said
        assert str(target) in said
        assert said.count("\n") == 1
    assert [path.name for path in (directory / "full").iterdir()] == ["mine"]
    backup = scene.backup()
    assert "holds a backup already" in cli.refused("backup", str(backup))
    scene.verify(backup)
    (directory / "empty").mkdir()
    assert scene.backup("empty")
    assert "no broker of user" in cli.refused("backup", str(directory / "x"), "--port", "1")
    elsewhere = cli.refused("backup", str(directory / "x"), "--data-dir", str(directory))
    assert f"runs on the data directory {directory}" in elsewhere
    data_dir = scene.broker.data_dir
    cli.json("backup", str(directory / "by-data-dir"), "--data-dir", str(data_dir))
    assert cli("backup", "a", "b").returncode == 2
    assert cli("backup", "x", "--port", "1", "--data-dir", "y").returncode == 2
    assert cli("backup", "verify").returncode == 2
    assert cli("backup", "x", "--keep", "3").returncode == 2


def test_an_external_store_is_not_copied(
    start_moldau: Start, server: object, short_tmp_path: Path
) -> None:
    broker = start_moldau(workers=1, redis=server.url)  # type: ignore[attr-defined]
    said = Cli(broker).refused("backup", str(short_tmp_path / "b"))
    assert "redis-cli --rdb" in said
    assert not (short_tmp_path / "b").exists()


def test_where_a_backup_cannot_be_restored(scene: Scene) -> None:
    cli, directory = Cli(scene.broker), scene.directory
    backup = scene.backup()
    said = cli.refused("restore", str(backup), "--data-dir", str(scene.broker.data_dir))
    assert f"in use by process {scene.broker.pid}" in said
    data_dir = scene.restore(backup)
    assert "holds a store already" in cli.refused(
        "restore", str(backup), "--data-dir", str(data_dir)
    )
    (directory / "other").mkdir()
    (directory / "other" / "mine").write_text("mine")
    said = cli.refused("restore", str(backup), "--data-dir", str(directory / "other"))
    assert "is not empty (mine)" in said
    assert "is no backup" in cli.refused("restore", str(directory), "--data-dir", "x")
    # One that was interrupted is not served, and can be run again.
    (directory / "half" / "restoring" / "store").mkdir(parents=True)
    with pytest.raises(BrokerFailed, match="a restore into it has not ended"):
        scene.start_restored(directory / "half")
    assert scene.restore(backup, "half")
    scene.start_restored(directory / "half")
    until_answered(scene.observer.ports, TOPIC)
