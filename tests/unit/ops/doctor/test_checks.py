"""The checks of `moldau doctor`: each finds what it is for, and leaves a good machine alone."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.broker.settings.loading import load_settings
from moldau.broker.settings.processes import ServeSettings
from moldau.ops.doctor.checks import GIB, MIB, Finding, Level, faults, findings
from moldau.ops.doctor.facts import Advertised, Disk, Facts, Load, StoreFacts

GOOD = Facts(
    open_files=65536,
    overcommit=1,
    swap_total=0,
    swap_used=0,
    huge_pages="madvise",
    memory=16 * GIB,
    disk=Disk("/var/lib/moldau", "ext4", 200 * GIB, 100 * GIB),
    advertised=(Advertised("PLAINTEXT", "127.0.0.1", "127.0.0.1", ("127.0.0.1",)),),
)
REDIS = "redis://10.0.0.5:6379"
STORE = StoreFacts(
    where=REDIS,
    name="Valkey 9.1.2",
    ahead_s=0.01,
    info={"connected_slaves": 1, "aof_enabled": 1},
    config={"appendfsync": "everysec", "save": ""},
)


def facts(**changed: Any) -> Facts:
    return Facts(**{**vars(GOOD), **changed})


def settings(broker: dict[str, str] | None = None, **flags: object) -> ServeSettings:
    env = {
        f"MOLDAU_BROKER_{key.upper().replace('.', '_')}": value
        for key, value in (broker or {}).items()
    }
    return load_settings(flags, {"HOME": "/nonexistent", **env})


def found(check: str, known: Facts, given: ServeSettings | None = None) -> list[Finding]:
    return [each for each in findings(known, given or settings()) if each.check == check]


def level(check: str, known: Facts, given: ServeSettings | None = None) -> Level:
    """The worst of a check."""
    order = list(Level)
    return max((each.level for each in found(check, known, given)), key=order.index)


def test_a_good_machine() -> None:
    for known, given in ((GOOD, settings()), (facts(store=STORE), settings(redis=REDIS))):
        wrong = [each for each in findings(known, given) if each.level is not Level.OK]
        assert not wrong
        assert faults(findings(known, given)) == 0


def test_everything_that_is_wrong_has_a_remedy() -> None:
    known = facts(
        open_files=256,
        overcommit=2,
        swap_total=GIB,
        swap_used=GIB,
        huge_pages="always",
        disk=Disk("/mnt", "nfs4", GIB, GIB),
        ports=("port 9092 is taken",),
        is_root=True,
        advertised=(Advertised("PLAINTEXT", "0.0.0.0", "b.invalid", (), "unknown", True),),
        no_embedded_store="no embedded store for this platform",
        has_pipeline=True,
        no_java="there is no java",
    )
    wrong = [each for each in findings(known, settings()) if each.level is not Level.OK]
    assert len(wrong) == 10
    assert all(each.remedy and each.finding for each in wrong)


@pytest.mark.parametrize(
    ("limit", "expected"), [(512, "fault"), (2048, "warning"), (1 << 20, "ok")]
)
def test_open_files(limit: int, expected: str) -> None:
    assert level("open files", facts(open_files=limit)) == expected


def test_open_files_for_as_many_connections_as_are_allowed() -> None:
    given = settings({"max.connections": "9000"})
    assert level("open files", facts(open_files=8192), given) == "fault"
    assert level("open files", facts(open_files=16384), given) == "ok"


def test_overcommit_matters_for_a_large_store() -> None:
    known = facts(overcommit=0)
    assert level("overcommit", known) == "warning"  # no limit
    assert level("overcommit", known, settings(store_maxmemory="12gb")) == "warning"
    assert level("overcommit", known, settings(store_maxmemory="1gb")) == "ok"
    assert level("overcommit", facts(overcommit=2)) == "fault"
    assert not found("overcommit", facts(overcommit=0, store=STORE), settings(redis=REDIS))


def test_swap_that_is_used() -> None:
    assert level("swap", facts(swap_total=GIB, swap_used=0)) == "ok"
    assert level("swap", facts(swap_total=GIB, swap_used=GIB // 2)) == "warning"


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_data_directory_on_the_network(kind: str) -> None:
    assert level("disk", facts(disk=Disk("/mnt", kind, 9 * GIB, 9 * GIB))) == "fault"


def test_a_data_directory_in_memory_or_without_room() -> None:
    assert level("disk", facts(disk=Disk("/tmp", "tmpfs", 9 * GIB, 9 * GIB))) == "warning"
    assert level("disk", facts(disk=Disk("/", "ext4", 90 * GIB, 100 * MIB))) == "fault"
    little = facts(disk=Disk("/", "ext4", 90 * GIB, 5 * GIB))
    assert level("disk", little, settings(store_maxmemory="4gb")) == "warning"
    assert level("disk", little, settings(store_min_free="6gb")) == "fault"


def test_ports_in_use_unless_by_our_own_broker() -> None:
    assert level("ports", facts(ports=("port 9093 is taken",))) == "fault"
    assert level("ports", facts(is_running=True)) == "ok"


@pytest.mark.parametrize(
    ("addresses", "serves_others", "expected"),
    [
        ((), True, "fault"),
        (("127.0.1.1",), True, "fault"),  # what Debian gives a machine's own name
        (("10.0.0.7", "::1"), True, "fault"),
        (("10.0.0.7",), True, "ok"),
        (("10.0.0.7",), False, "warning"),
        (("127.0.0.1",), False, "ok"),
    ],
)
def test_where_clients_are_sent(
    addresses: tuple[str, ...], serves_others: bool, expected: str
) -> None:
    host = "0.0.0.0" if serves_others else "127.0.0.1"
    one = Advertised("SSL", host, "broker", addresses, "not known", serves_others)
    assert level("advertised SSL", facts(advertised=(one,))) == expected


def test_an_external_store() -> None:
    given = settings(redis=REDIS)

    def with_store(**changed: Any) -> Facts:
        return facts(store=StoreFacts(**{**vars(STORE), **changed}))

    assert level("store", with_store(problem="it is Redis 6.2: too old"), given) == "fault"
    assert level("store", with_store(warnings=("no append-only file",)), given) == "warning"
    alone = {"connected_slaves": 0, "aof_enabled": 1}
    assert level("store", with_store(info=alone), given) == "warning"
    assert level("store", with_store(info=alone, config={"appendfsync": "always"}), given) == "ok"
    snapshots = {"appendfsync": "always", "save": "3600 1"}
    assert level("store", with_store(config=snapshots), given) == "warning"
    open_master = {"appendfsync": "always", "min-replicas-to-write": "0"}
    assert level("store", with_store(config=open_master), given) == "ok"
    waiting = settings(redis=REDIS, standby="true")
    assert level("store", with_store(config=open_master), waiting) == "warning"
    assert level("store", with_store(config=open_master, info=alone), waiting) == "ok"
    guarded = {**open_master, "min-replicas-to-write": "1"}
    assert level("store", with_store(config=guarded), waiting) == "ok"


@pytest.mark.parametrize(
    ("ahead", "expected"), [(0.5, "ok"), (-5.0, "warning"), (5.0, "warning"), (-90.0, "fault")]
)
def test_clocks(ahead: float, expected: str) -> None:
    store = StoreFacts(where=REDIS, ahead_s=ahead)
    assert level("clock", facts(store=store), settings(redis=REDIS)) == expected


def test_what_topics_will_need() -> None:
    day = 86_400_000
    rate = GIB / 86_400  # 1 GB a day

    def load(days: int, most: int = -1) -> Facts:
        return facts(load=(Load("orders", 4, rate, days * day, most),), memory=16 * GIB)

    assert level("memory", load(7)) == "ok"
    assert level("memory", load(12)) == "warning"
    assert level("memory", load(30)) == "fault"
    assert level("memory", load(30, most=GIB)) == "ok"  # 4 GB in all
    assert level("memory", facts(load=(Load("orders", 4, rate, -1, -1),))) == "warning"
    limited = facts(load=(Load("orders", 4, rate, 7 * day, -1),), store_limit=4 * GIB)
    assert level("memory", limited) == "fault"


def test_platforms() -> None:
    musl = facts(libc="", no_embedded_store="no embedded store for this platform (Linux x86_64)")
    assert level("platform", musl) == "fault"
    assert level("platform", musl, settings(redis=REDIS)) == "ok"
    assert level("platform", facts(python=(3, 15))) == "warning"


def test_java_only_where_the_pipeline_is_installed() -> None:
    assert not found("java", facts(no_java="there is no java on the PATH"))
    assert level("java", facts(has_pipeline=True, no_java="there is none")) == "warning"


def test_root_only_where_others_are_served() -> None:
    assert not found("user", facts(is_root=True))
    others = (Advertised("SSL", "0.0.0.0", "b", ("10.0.0.7",), "", True),)
    assert level("user", facts(is_root=True, advertised=others)) == "warning"
