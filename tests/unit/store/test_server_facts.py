"""The facts of INFO, as Redis 7.0 and Valkey 9.1 reply: `info/` holds what real servers said."""

from pathlib import Path

import pytest

from moldau.broker.store.server_facts import NO_REPLID, ServerFacts

INFO = Path(__file__).parent / "info"


def said(name: str, **replaced: str) -> ServerFacts:
    text = (INFO / f"{name}.txt").read_text()
    lines = [line for line in text.splitlines() if line.partition(":")[0] not in replaced]
    lines += [f"{field}:{value}" for field, value in replaced.items()]
    return ServerFacts.parse("\r\n".join(lines).encode())


def test_a_master_of_redis_7_0() -> None:
    facts = said("redis-7.0-master")
    assert (facts.server, facts.version) == ("redis", "7.0.15")
    assert facts.run_id == "b81508c15f8b814238d43eac12a5de911d992352"
    assert facts.replid == "fde95e673af9fe012500989df51ab42ddf019b47"
    assert facts.previous_replid == NO_REPLID
    assert facts.store_id == f"{facts.run_id}:{NO_REPLID}:-1"
    assert facts.is_master
    assert facts.master is None
    assert facts.replicas == facts.online
    assert [replica.address for replica in facts.online] == [("127.0.0.1", 27102)]
    assert facts.has_online(("127.0.0.1", 27102))
    assert not facts.has_online(("127.0.0.1", 27101))
    assert (facts.sync_full, facts.sync_partial_ok, facts.sync_partial_err) == (1, 0, 0)
    assert facts.good_replicas is None
    assert facts.aof_enabled
    assert not facts.loading
    assert not facts.failing_over


def test_a_master_of_valkey_9_1() -> None:
    facts = said("valkey-9.1-master")
    assert (facts.server, facts.version) == ("valkey", "9.1.2")
    assert facts.store_id == f"c87cf4dd2c19649cc85bc705240b03cc52207ae3:{NO_REPLID}:-1"
    assert facts.is_master
    assert [(replica.address, replica.offset) for replica in facts.online] == [
        (("127.0.0.1", 27112), 14)
    ]
    assert facts.offset == 14
    assert (facts.sync_full, facts.sync_partial_ok, facts.sync_partial_err) == (1, 0, 0)
    assert facts.aof_enabled


@pytest.mark.parametrize(
    ("name", "port"), [("redis-7.0-replica", 27101), ("valkey-9.1-replica", 27111)]
)
def test_a_replica_has_its_masters_replid_and_a_run_id_of_its_own(name: str, port: int) -> None:
    facts = said(name)
    master = said(name.replace("replica", "master"))
    assert facts.role == "slave"
    assert not facts.is_master
    assert facts.master == ("127.0.0.1", port)
    assert facts.master_link_up
    assert facts.replid == master.replid
    assert facts.store_id != master.store_id
    assert facts.replicas == ()
    assert not facts.aof_enabled


def test_only_replicas_that_are_synchronised_are_online() -> None:
    facts = said(
        "redis-7.0-master",
        slave0="ip=::1,port=1,state=online,offset=5,lag=0",
        slave1="ip=::1,port=2,state=wait_bgsave,offset=0,lag=0",
        slave2="ip=db-3,port=3,state=online,offset=7,lag=1",
        min_slaves_good_slaves="2",
        master_failover_state="waiting-for-sync",
        loading="1",
    )
    assert [replica.address for replica in facts.replicas] == [("::1", 1), ("::1", 2), ("db-3", 3)]
    assert [replica.offset for replica in facts.online] == [5, 7]
    assert not facts.has_online(("::1", 2))
    assert facts.good_replicas == 2
    assert facts.failing_over
    assert facts.loading


def test_what_was_not_asked_for_has_its_default() -> None:
    facts = ServerFacts.parse(b"# Server\r\nredis_version:7.0.15\r\nrun_id:ab\r\n")
    assert facts == ServerFacts(version="7.0.15", run_id="ab")
    assert ServerFacts.parse(b"") == ServerFacts()
