"""What can go wrong, and the Kafka error code a client gets for it.

MoldauError
├── KafkaError              an error of the protocol, with its code
└── StoreFault              the store did not do what was asked; clients always retry
    ├── StoreUnavailable      the connection was lost before the reply: outcome unknown
    ├── StoreTimeout          no reply in time: outcome unknown
    └── StoreRefused          an error reply (loading, read-only, ...): it did not happen
        ├── StoreDown           there is no connection: nothing was sent
        │   ├── StoreDemoted      the server is no master any more, or still loads its data
        │   └── SlotNotTaken      this worker is about to take the group's slot (again)
        ├── StoreFenced         another worker has taken the group's slot
        └── StoreFull           out of memory (`noeviction`), or its disk is full
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TypeVar


class ErrorCode(IntEnum):
    """Kafka's error codes under Kafka's names."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    INVALID_REGULAR_EXPRESSION = 128
    SHARE_SESSION_LIMIT_REACHED = 133


class MoldauError(Exception):
    """The base of all errors that Moldau raises on purpose."""


class KafkaError(MoldauError):
    """The request fails with this error code and message.

    Without a message the client gets none, and shows its own sentence about the code: a text that
    is only the code's name would take its place.
    """

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or f"error {code.value}, {code.name}")
        self.code = code
        self.message = message or None


class RecordsRefused(KafkaError):
    """Some records of a batch are refused, and the batch with them (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, indexes: list[int], reason: str) -> None:
        super().__init__(code, message)
        self.indexes = indexes  # of the records in their batch
        self.reason = reason  # of each of them


class StoreFault(MoldauError):
    """The store did not do what was asked."""


T = TypeVar("T")
Callback = Callable[[T | StoreFault], None]  # called with what was asked for, or with the fault


class StoreUnavailable(StoreFault):
    """The connection was lost before the reply: the command may have been run or not."""


class StoreTimeout(StoreFault):
    """No reply in time; the command may still be run."""


class StoreRefused(StoreFault):
    """The store replied with an error: the command was not run."""


class StoreDown(StoreRefused):
    """There is no connection, so nothing was sent."""


class StoreDemoted(StoreDown):
    """The server is a replica now, or loads its data: as good as no connection."""


class SlotNotTaken(StoreDown):
    """A write of a group whose slot this worker has yet to take, or is writing again."""


class StoreFenced(StoreRefused):
    """A write of a group whose slot another worker has taken since."""


class StoreFull(StoreRefused):
    """The store has reached its memory limit, or has no room on its disk; reads still work."""


def coordinator_code_for(fault: StoreFault) -> ErrorCode:
    """The error code a client gets for a group request that the store did not do. Retriable."""
    if isinstance(fault, StoreFenced):
        return ErrorCode.NOT_COORDINATOR
    if isinstance(fault, SlotNotTaken):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


def message_for(fault: BaseException) -> str | None:
    """The message that a client gets beside the code. None: the code says it all."""
    if isinstance(fault, KafkaError):
        return fault.message
    return (str(fault) or None) if isinstance(fault, MoldauError) else None


def read_code_for(fault: BaseException) -> ErrorCode:
    """The error code a client gets when its Fetch, ListOffsets or OffsetForLeaderEpoch fails.

    Consumers accept fewer codes there than elsewhere: Java's throws IllegalStateException at a
    Fetch that answers REQUEST_TIMED_OUT. All of them retry KAFKA_STORAGE_ERROR silently, and
    nothing was written whose outcome a timeout would leave open.
    """
    return ErrorCode.KAFKA_STORAGE_ERROR if isinstance(fault, StoreFault) else code_for(fault)


def code_for(fault: BaseException) -> ErrorCode:
    """The error code a client gets. That of a store fault is always retriable."""
    if isinstance(fault, KafkaError):
        return fault.code
    if isinstance(fault, StoreTimeout):
        return ErrorCode.REQUEST_TIMED_OUT
    if isinstance(fault, StoreFault):
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.UNKNOWN_SERVER_ERROR
