"""The load test's own options, and the address of the broker under test."""

from __future__ import annotations

import functools
import os
from typing import Any

from locust.env import Environment

from moldau.broker.wire.codecs import CODEC_NAMES
from moldau.loadtest.users.shapes import SHAPES
from moldau.ops.client import PLAINTEXT, Security, parse_address, read_client_settings

DEFAULT_HOST = "127.0.0.1:9092"
# Of the topics that users write to.
TOPIC_CONFIGS = {"retention.bytes": str(64 << 20), "segment.bytes": str(8 << 20)}


def add_options(parser: Any) -> None:
    """Each of them is also an environment variable: --batch-bytes is MOLDAU_LOAD_BATCH_BYTES."""

    def add(name: str, **settings: Any) -> None:
        variable = f"MOLDAU_LOAD_{name.upper().replace('-', '_')}"
        parser.add_argument(f"--{name}", env_var=variable, **settings)

    add("topic", default="moldau-load", help="created if it does not exist; only for load tests")
    add("partitions", type=int, default=8, help="of the topic, when it is created")
    add("batch-bytes", type=int, default=4000, help="of a Produce request, before compression")
    add("record-bytes", type=int, default=1000, help="of a record's value")
    add("codec", choices=sorted(CODEC_NAMES), default="none")
    add("acks", choices=["all", "1", "0"], default="all")
    add("idempotent", choices=["yes", "no"], default="yes", help="needs acks=all")
    add("rate", type=float, default=5.0, help="requests per second of each user, on a schedule")
    add("fetch-bytes", type=int, default=128 << 10, help="maximum size of a Fetch response")
    add("group", default="moldau-load", help="prefix of the group ids")
    add("groups", type=int, default=4, help="number of groups the GroupMembers are spread over")
    add("session-ms", type=int, default=10_000, help="session timeout of members")
    add("heartbeat-ms", type=int, default=1000, help="between heartbeats of a member")
    add("lifetime", type=float, default=8.0, help="seconds a GroupChurn stays, on average")
    add("command-config", metavar="FILE", help="client settings for TLS and a login")
    add("shape", choices=sorted(SHAPES), help="of the load: at most -u users, for -t seconds")


def host_of(environment: Environment) -> str:
    host = environment.host or os.environ.get("MOLDAU_BOOTSTRAP") or DEFAULT_HOST
    return host.rpartition("://")[2].rstrip("/")  # the web form may put a scheme before it


@functools.cache
def security_of(path: str | None) -> Security:
    """The security settings of --command-config. Raises InvalidSecurity."""
    return read_client_settings(path).security if path else PLAINTEXT


def bootstrap_of(environment: Environment) -> tuple[str, int]:
    return parse_address(host_of(environment))
