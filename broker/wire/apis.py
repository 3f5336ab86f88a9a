"""The table of APIs: key, versions, first flexible version, messages and routing.

Everything that depends on which APIs exist reads it here: ApiVersions, the dispatcher, the router
and the table in the room's README (a test compares them). An API that is listed in `APIS` is fully
implemented.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from functools import lru_cache
from importlib import import_module
from typing import NamedTuple

from moldau.broker.wire.codegen.compiler import codec
from moldau.broker.wire.schema import Codec, Message

NEVER_FLEXIBLE = 1 << 15


class ApiKey(IntEnum):
    """The APIs whose messages are declared. A name here is also the name of the module of its
    messages (`wire/messages`) and, if it is served, of its handler (`handlers`)."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


class Routing(Enum):
    """Which process answers a request that arrives at a router."""

    LOCAL = "local"  # the router itself
    LOGIN = "login"  # the router itself; one worker checks the client's proof of identity
    LEADER = "leader"  # any worker, preferably the partition's leader
    ANY = "any"  # any worker
    COORDINATOR = "coordinator"  # the worker that owns the group or transactional id
    COORDINATORS = "coordinators"  # the owners of the ids in the request: split and merged
    EVERY = "every"  # all workers, with merged answers


class Api(NamedTuple):
    key: ApiKey
    name: str
    lowest: int
    highest: int
    flexible_from: int
    request: type[Message]
    response: type[Message]
    routing: Routing
    # Decoded from this version on, and refused with UNSUPPORTED_VERSION below `lowest` (see
    # Produce).
    refused_from: int | None = None
    # Served and advertised only if telemetry is on: clients that see it send it.
    is_telemetry: bool = False

    @property
    def module_name(self) -> str:
        """The name of its modules in `wire/messages` and `handlers`."""
        return self.key.name.lower()

    @property
    def advertised_from(self) -> int:
        return self.lowest if self.refused_from is None else self.refused_from

    def understands(self, version: int) -> bool:
        return self.advertised_from <= version <= self.highest

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from

    def request_codec(self, version: int) -> Codec:
        return codec(self.request, version, version >= self.flexible_from)

    def response_codec(self, version: int) -> Codec:
        return codec(self.response, version, version >= self.flexible_from)

    def response_header_has_tags(self, version: int) -> bool:
        # ApiVersions is sent before the client knows which versions the broker speaks: always
        # header v0.
        return version >= self.flexible_from and self.key != ApiKey.API_VERSIONS


def _api(
    key: ApiKey,
    lowest: int,
    highest: int,
    flexible_from: int,
    routing: Routing,
    refused_from: int | None = None,
    is_telemetry: bool = False,
) -> Api:
    name = key.name.title().replace("_", "")  # as in Kafka's documentation
    messages = import_module(f"moldau.broker.wire.messages.{key.name.lower()}")
    request, response = getattr(messages, f"{name}Request"), getattr(messages, f"{name}Response")
    return Api(
        key,
        name,
        lowest,
        highest,
        flexible_from,
        request,
        response,
        routing,
        refused_from,
        is_telemetry,
    )


# Key, lowest and highest version, first flexible version, routing.
_ROWS = (
    # Advertised from 0: older librdkafka turns compression off when it does not see 0-2. They
    # are answered with UNSUPPORTED_VERSION, as in Kafka 4.
    _api(ApiKey.PRODUCE, 3, 13, 9, Routing.LEADER, refused_from=0),
    _api(ApiKey.FETCH, 4, 18, 12, Routing.LEADER),
    _api(ApiKey.LIST_OFFSETS, 1, 11, 6, Routing.LEADER),
    _api(ApiKey.METADATA, 0, 13, 9, Routing.ANY),
    _api(ApiKey.OFFSET_COMMIT, 2, 10, 8, Routing.COORDINATOR),
    _api(ApiKey.OFFSET_FETCH, 1, 10, 6, Routing.COORDINATORS),
    _api(ApiKey.FIND_COORDINATOR, 0, 6, 3, Routing.LOCAL),
    _api(ApiKey.JOIN_GROUP, 0, 9, 6, Routing.COORDINATOR),
    _api(ApiKey.HEARTBEAT, 0, 4, 4, Routing.COORDINATOR),
    _api(ApiKey.LEAVE_GROUP, 0, 5, 4, Routing.COORDINATOR),
    _api(ApiKey.SYNC_GROUP, 0, 5, 4, Routing.COORDINATOR),
    _api(ApiKey.DESCRIBE_GROUPS, 0, 6, 5, Routing.COORDINATORS),
    _api(ApiKey.LIST_GROUPS, 0, 5, 3, Routing.EVERY),
    _api(ApiKey.SASL_HANDSHAKE, 0, 1, NEVER_FLEXIBLE, Routing.LOGIN),
    _api(ApiKey.API_VERSIONS, 0, 4, 3, Routing.LOCAL),
    _api(ApiKey.CREATE_TOPICS, 2, 7, 5, Routing.ANY),
    _api(ApiKey.DELETE_TOPICS, 1, 6, 4, Routing.ANY),
    _api(ApiKey.DELETE_RECORDS, 0, 2, 2, Routing.LEADER),
    _api(ApiKey.INIT_PRODUCER_ID, 0, 5, 2, Routing.COORDINATOR),
    _api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, 4, Routing.LEADER),
    _api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, 3, Routing.COORDINATORS),
    _api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, 3, Routing.COORDINATOR),
    _api(ApiKey.END_TXN, 0, 5, 3, Routing.COORDINATOR),
    _api(ApiKey.WRITE_TXN_MARKERS, 1, 2, 1, Routing.ANY),
    _api(ApiKey.TXN_OFFSET_COMMIT, 0, 5, 3, Routing.COORDINATOR),
    _api(ApiKey.DESCRIBE_ACLS, 1, 3, 2, Routing.ANY),
    _api(ApiKey.CREATE_ACLS, 1, 3, 2, Routing.ANY),
    _api(ApiKey.DELETE_ACLS, 1, 3, 2, Routing.ANY),
    _api(ApiKey.DESCRIBE_CONFIGS, 1, 4, 4, Routing.ANY),
    _api(ApiKey.ALTER_CONFIGS, 0, 2, 2, Routing.ANY),
    _api(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, 2, Routing.ANY),
    _api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, 2, Routing.ANY),
    _api(ApiKey.SASL_AUTHENTICATE, 0, 2, 2, Routing.LOGIN),
    _api(ApiKey.CREATE_PARTITIONS, 0, 3, 2, Routing.ANY),
    _api(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, 2, Routing.ANY),
    _api(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, 2, Routing.ANY),
    _api(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, 2, Routing.ANY),
    _api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, 2, Routing.ANY),
    _api(ApiKey.DELETE_GROUPS, 0, 2, 2, Routing.COORDINATORS),
    _api(ApiKey.ELECT_LEADERS, 0, 2, 2, Routing.ANY),
    _api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, 1, Routing.ANY),
    _api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, 0, Routing.ANY),
    _api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, 0, Routing.ANY),
    _api(ApiKey.OFFSET_DELETE, 0, 0, NEVER_FLEXIBLE, Routing.COORDINATOR),
    _api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, 1, Routing.ANY),
    _api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, 1, Routing.ANY),
    _api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, 0, Routing.ANY),
    _api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, 0, Routing.ANY),
    _api(ApiKey.DESCRIBE_QUORUM, 0, 2, 0, Routing.ANY),
    _api(ApiKey.UPDATE_FEATURES, 0, 1, 0, Routing.ANY),
    _api(ApiKey.DESCRIBE_CLUSTER, 0, 2, 0, Routing.ANY),
    _api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, 0, Routing.LEADER),
    _api(ApiKey.UNREGISTER_BROKER, 0, 0, 0, Routing.ANY),
    _api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, 0, Routing.COORDINATORS),
    _api(ApiKey.LIST_TRANSACTIONS, 0, 2, 0, Routing.EVERY),
    _api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, 0, Routing.COORDINATOR),
    _api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, 0, Routing.COORDINATORS),
    _api(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, 0, 0, Routing.ANY, is_telemetry=True),
    _api(ApiKey.PUSH_TELEMETRY, 0, 0, 0, Routing.ANY, is_telemetry=True),
    _api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, 0, Routing.ANY),
    _api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, 0, Routing.ANY),
)

APIS: dict[int, Api] = {int(api.key): api for api in _ROWS}

# Declared, and tested like the others, but not served: nothing but tests reads these rows. They
# move up when share groups have handlers.
NOT_SERVED: tuple[Api, ...] = (
    _api(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, 0, Routing.COORDINATOR),
    _api(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, 0, Routing.COORDINATORS),
    _api(ApiKey.SHARE_FETCH, 1, 2, 0, Routing.COORDINATOR),
    _api(ApiKey.SHARE_ACKNOWLEDGE, 1, 2, 0, Routing.COORDINATOR),
    _api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1, 0, Routing.COORDINATORS),
    _api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, 0, Routing.COORDINATOR),
    _api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, 0, Routing.COORDINATOR),
)


@lru_cache(maxsize=512)
def lookup(key: int, version: int) -> Api | None:
    """Return the API if this version of it can be answered."""
    api = APIS.get(key)
    return api if api is not None and api.understands(version) else None
