"""Which servers may be the store, and that nothing said of them gives a password away."""

from typing import Any

import pytest

from moldau.broker.store.check import UnsuitableStore, judge
from moldau.broker.store.store_url import mask

WHERE = "redis://db:6379"
GOOD: dict[str, Any] = {
    "redis_version": "7.0.15",
    "redis_mode": "standalone",
    "role": "master",
    "connected_slaves": 2,
    "maxmemory": 0,
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
    "loading": 0,
}


@pytest.mark.parametrize(
    ("version", "server"),
    [
        ({"redis_version": "7.0.0"}, "redis"),
        ({"redis_version": "8.2.1"}, "redis"),
        # Valkey names the Redis it is compatible with beside its own version.
        ({"redis_version": "7.2.4", "valkey_version": "8.0.0"}, "valkey"),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, "valkey"),
    ],
)
def test_a_good_server_is_taken_without_a_word(version: dict[str, str], server: str) -> None:
    info = judge(WHERE, {**GOOD, **version})
    assert (info.server, info.aof, info.replicas, info.warnings) == (server, True, 2, ())


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"redis_version": "6.2.14"}, r"is Redis 6\.2\.14: too old, .*Redis 7\.0 or Valkey 8\.0"),
        ({"redis_version": "2.8.19"}, r"is Redis 2\.8\.19: too old"),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.5"}, r"is Valkey 7\.2\.5: too old"),
        ({}, "too old"),
        (
            {"maxmemory": 1 << 30, "maxmemory_policy": "allkeys-lru"},
            r"evicts keys when it is full \(maxmemory-policy allkeys-lru\).*set it to noeviction",
        ),
        (
            {"role": "slave", "slave_read_only": 0, "master_host": "db0", "master_port": 6379},
            r"is a replica of db0:6379: give the address of the primary",
        ),
        ({"redis_mode": "cluster"}, "runs in cluster mode"),
        ({"redis_mode": "sentinel"}, "runs in sentinel mode"),
        ({"loading": 1}, "still loading its data"),
    ],
)
def test_a_server_that_cannot_be_the_store_is_refused(facts: dict[str, Any], reason: str) -> None:
    described = {**GOOD, **facts} if facts else {}
    with pytest.raises(UnsuitableStore, match=reason):
        judge(WHERE, described)


def test_an_evicting_policy_that_cannot_evict_is_warned_of() -> None:
    info = judge(WHERE, {**GOOD, "maxmemory_policy": "allkeys-lru"})
    assert "would lose logs if maxmemory were ever set" in info.warnings[0]


def test_a_master_under_sentinel_that_cannot_fail_over_well_is_warned_of() -> None:
    assert judge(WHERE, {**GOOD, "min_slaves_good_slaves": 2}, has_sentinel=True).warnings == ()
    (warning,) = judge(WHERE, GOOD, has_sentinel=True).warnings
    assert "does not set min-replicas-to-write" in warning
    (warning,) = judge(WHERE, {**GOOD, "connected_slaves": 0}, has_sentinel=True).warnings
    assert "has no replicas: nothing can take over" in warning


def test_a_server_that_forgets_is_warned_of() -> None:
    info = judge(WHERE, {**GOOD, "aof_enabled": 0})
    assert "keeps no append-only file" in info.warnings[0]


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://db:6379/0", "redis://db:6379/0"),
        ("redis://:secret@db:6379/0", "redis://:***@db:6379/0"),
        ("rediss://jan:secret@db:6379/0", "rediss://jan:***@db:6379/0"),
        ("unix://:secret@/run/r.sock?db=1", "unix://:***@/run/r.sock?db=1"),
        ("unix:///run/r.sock?db=1&password=secret", "unix:///run/r.sock?db=1&password=***"),
        ("rediss://db?ssl_password=secret", "rediss://db?ssl_password=***"),
        ("unix:///run/r.sock", "unix:///run/r.sock"),
    ],
)
def test_passwords_are_masked_wherever_they_may_stand(url: str, masked: str) -> None:
    assert mask(url) == masked
