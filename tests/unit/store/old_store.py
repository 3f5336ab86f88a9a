"""A store as Moldau 0.2 filled it: every kind of key, under the names of format 1."""

from __future__ import annotations

from typing import Any

import msgspec
import redis

from moldau.broker.placement import slot_of
from moldau.broker.store.topics import TopicRecord


def fill(client: redis.Redis, topics: int = 1) -> dict[bytes, bytes]:
    """Old names and the new ones of what has to be renamed; the rest keeps its name."""
    old = _Old(client)
    client.set("moldau:cluster", "cluster")
    client.set("moldau:contents", "contents")
    client.set("moldau:producer-ids", 2000)
    client.hset("moldau:incarnations", "again", 2)
    client.hset("moldau:config", "", msgspec.msgpack.encode({"num.partitions": "3"}))
    client.hset("moldau:members", "readers", b"members")
    client.xadd("moldau:changes", {"c": b"change"})
    client.xadd("moldau:wake:0", {"k": b"moldau:orders:0"})
    for number in range(topics):
        old.log("orders" if not number else f"orders-{number}", 0, 2)
    old.log("again", 2, 1)
    old.log("slot", 0, 1, base="moldau:slot~0")
    old.log("leaving", 0, 1, deleting=True)
    old.native("plain", 0, {"moldau.storage": "native"}, "moldau:plain:0", "{moldau:plain:0}")
    old.native(
        "renewed", 3, {"moldau.storage": "native"}, "moldau:renewed:0", "{moldau:renewed:0}:"
    )
    old.native("adopted", 0, _native("sensors:raw"), "sensors:raw", "{sensors:raw}:")
    old.native("tagged", 0, _native("{app}:t:{partition}"), "{app}:t:0", "{app}:")
    # Of before such keys were refused.
    old.native("odd", 0, _native("a}b"), "a}b", "{moldau:odd:0}")
    old.group("readers", {"orders:0": b"5", "orders:1": b"6"})
    old.group("a:b%c", {"orders:0": b"7"})
    old.group("simple", {"orders:0": b"8"}, record=False)
    return old.names


def _native(key: str) -> dict[str, str]:
    return {"moldau.storage": "native", "moldau.native.key": key}


class _Old:
    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self.names: dict[bytes, bytes] = {}

    def _topic(self, name: str, incarnation: int, partitions: int, **more: Any) -> None:
        record = TopicRecord(name, name[:16].ljust(16).encode(), partitions, incarnation, 1, **more)
        self._client.hset("moldau:topics", name, msgspec.msgpack.encode(record))

    def log(
        self, topic: str, incarnation: int, partitions: int, base: str = "", **more: Any
    ) -> None:
        client = self._client
        self._topic(topic, incarnation, partitions, **more)
        for number in range(partitions):
            name = base or f"moldau:{topic}" + (f"~{incarnation}" if incarnation else "")
            key = f"{name}:{number}"
            client.xadd(key, {"b": f"batch of {key}"}, id="0-1")
            client.hset(f"{key}:state", mapping={"start": 4, "snapshot": b"state"})
            client.zadd(f"{key}:times", {"0:100": 1000.0})
            client.xadd(f"{key}:clean:3", {"b": "cleaned"}, id="0-1")
            client.zadd(f"{key}:clean:3:times", {"0:50": 900.0})
            client.set(f"{key}:cleaner", "lease", px=600_000)
            for what in ("state", "times", "clean:3", "clean:3:times", "cleaner"):
                self._renamed(f"{key}:{what}", f"{{{key}}}:{what}")

    def native(
        self, topic: str, incarnation: int, configs: dict[str, str], stream: str, beside: str
    ) -> None:
        self._topic(topic, incarnation, 1, configs=configs)
        key = f"moldau:{topic}" + (f"~{incarnation}" if incarnation else "") + ":0"
        self._client.xadd(stream, {"value": "a"}, id="5-0")
        for field, value in (("native", "1"), ("last", "5-0"), ("p:7", "0 1;0,0,5,0")):
            self._client.hset(f"{key}:state", field, value)
        self._client.zadd(f"{key}:marks", {"5-0 3": 0.0})
        for what in ("state", "marks"):
            middle = key if beside.endswith(":") else ""
            self._renamed(f"{key}:{what}", f"{beside}{middle}:{what}")

    def group(self, group_id: str, offsets: dict[str, bytes], *, record: bool = True) -> None:
        slot = slot_of(group_id)
        name = group_id.replace("%", "%25").replace(":", "%3A")
        if f"moldau:slot:{slot}".encode() not in self.names:
            self._renamed(f"moldau:slot:{slot}", f"{{moldau:slot:{slot}}}:groups")
        self._client.sadd(f"moldau:slot:{slot}", group_id)
        new = f"{{moldau:slot:{slot}}}:group:{name}"
        if record:
            for field, value in (("identity", "cgp_1"), ("revision", "3"), ("record", "bytes")):
                self._client.hset(f"moldau:group:{name}", field, value)
            self._renamed(f"moldau:group:{name}", new)
        for partition, committed in offsets.items():
            self._client.hset(f"moldau:group:{name}:offsets", partition, committed)
        self._renamed(f"moldau:group:{name}:offsets", f"{new}:offsets")

    def _renamed(self, old: str, new: str) -> None:
        self.names[old.encode()] = new.encode()
