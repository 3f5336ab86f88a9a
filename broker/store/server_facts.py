"""What INFO says about a server: its store id, its role, its replicas. Pure: bytes in, facts out.

`SECTIONS` are the sections of INFO that `ServerFacts.parse` reads. Facts of sections that were not
asked for have their defaults.
"""

from __future__ import annotations

from typing import NamedTuple, Self

SECTIONS = ("server", "replication", "stats", "persistence")
NO_REPLID = "0" * 40


class ReplicaFacts(NamedTuple):
    """A replica of a master, under the address it announces (`replica-announce-ip`)."""

    host: str
    port: int
    online: bool  # False: still being synchronised
    offset: int  # how much of the master's replication stream it has acknowledged

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port


class ServerFacts(NamedTuple):
    """One reply to INFO.

    `run_id` is new with every start of the server, `replid` with every promotion. A healthy master
    gets a new `replid` too, without losing anything: when its first replica attaches, and when the
    backlog is freed (`repl-backlog-ttl` without replicas). After a promotion `previous_replid` is
    the former master's `replid`, and `promoted_at` where in its stream that happened.
    """

    server: str = "redis"  # or "valkey"
    version: str = ""
    run_id: str = ""
    replid: str = ""
    previous_replid: str = NO_REPLID
    promoted_at: int = -1
    role: str = ""  # "master" or "slave"
    offset: int = 0  # in the replication stream
    replicas: tuple[ReplicaFacts, ...] = ()
    good_replicas: int | None = None  # by `min-replicas-to-write`; None: it is not set
    master: tuple[str, int] | None = None  # of a replica
    master_link_up: bool = False  # of a replica
    failing_over: bool = False  # FAILOVER, or Sentinel's coordinated one, is under way
    sync_full: int = 0  # full resynchronisations of replicas since the server started
    sync_partial_ok: int = 0
    sync_partial_err: int = 0  # refused, and so followed by a full one
    loading: bool = False
    aof_enabled: bool = False

    @classmethod
    def parse(cls, info: bytes) -> Self:
        """Parse a reply to `INFO` with any sections, or several replies joined."""
        said: dict[str, str] = {}
        for line in info.decode("utf-8", "replace").splitlines():
            name, colon, value = line.partition(":")
            if colon and not line.startswith("#"):
                said[name] = value
        valkey = said.get("valkey_version")
        good = said.get("min_slaves_good_slaves")
        port = said.get("master_port")
        return cls(
            server="valkey" if valkey else "redis",
            version=valkey or said.get("redis_version", ""),
            run_id=said.get("run_id", ""),
            replid=said.get("master_replid", ""),
            previous_replid=said.get("master_replid2", NO_REPLID),
            promoted_at=int(said.get("second_repl_offset", -1)),
            role=said.get("role", ""),
            offset=int(said.get("master_repl_offset", 0)),
            replicas=_replicas(said),
            good_replicas=None if good is None else int(good),
            master=None if port is None else (said.get("master_host", ""), int(port)),
            master_link_up=said.get("master_link_status") == "up",
            failing_over=said.get("master_failover_state", "no-failover") != "no-failover",
            sync_full=int(said.get("sync_full", 0)),
            sync_partial_ok=int(said.get("sync_partial_ok", 0)),
            sync_partial_err=int(said.get("sync_partial_err", 0)),
            loading=said.get("loading", "0") != "0",
            aof_enabled=said.get("aof_enabled", "0") == "1",
        )

    @property
    def store_id(self) -> str:
        """The store id: if it changes, the server may lack acknowledged writes."""
        return f"{self.run_id}:{self.previous_replid}:{self.promoted_at}"

    @property
    def is_master(self) -> bool:
        return self.role == "master"

    @property
    def online(self) -> tuple[ReplicaFacts, ...]:
        """The replicas that WAIT counts on."""
        return tuple(replica for replica in self.replicas if replica.online)

    def has_online(self, address: tuple[str, int]) -> bool:
        return any(replica.address == address for replica in self.online)


def _replicas(said: dict[str, str]) -> tuple[ReplicaFacts, ...]:
    """`slave0:ip=127.0.0.1,port=6380,state=online,offset=14,lag=0`, `slave1:...`."""
    found = []
    for name, value in said.items():
        if name.startswith("slave") and name[5:].isdigit():
            facts = dict(fact.partition("=")[::2] for fact in value.split(","))
            found.append(
                ReplicaFacts(
                    host=facts.get("ip", ""),
                    port=int(facts.get("port", 0)),
                    online=facts.get("state") == "online",
                    offset=int(facts.get("offset", 0)),
                )
            )
    return tuple(found)
