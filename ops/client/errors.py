"""Errors of a request to a broker, in words an operator can act on."""

from __future__ import annotations

from moldau.broker.errors import ErrorCode
from moldau.ops.client.connection import error_name

# The leader or the coordinator is another one now: look it up and ask again.
STALE_LEADER = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE})
STALE_COORDINATOR = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
# The same request may succeed after a while, or at another broker.
RETRIABLE = (
    STALE_LEADER
    | STALE_COORDINATOR
    | {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # a broker may learn of a topic later than others
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)

_TRY_AGAIN = "try again in a moment; `moldau status` shows whether a worker is restarting"
_STOP_MEMBERS = "stop its consumers first; `moldau groups describe` shows its members"
_ALLOW = (
    "`moldau acls explain` says what is missing, `moldau acls add` allows it; the user that runs "
    "the broker may do everything on its machine, without --bootstrap and --command-config"
)
_LIST_TOPICS = "`moldau topics list` shows what exists"
CONFIG_NAMES = "names and values are those of Kafka's topic configuration, and moldau.*"

# Cause and remedy.
_REASONS: dict[int, tuple[str, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ("there is no such topic or partition", _LIST_TOPICS),
    ErrorCode.TOPIC_ALREADY_EXISTS: (
        "it exists already",
        "`moldau topics describe` shows it, --if-not-exists accepts it",
    ),
    ErrorCode.INVALID_CONFIG: ("a configuration is invalid", CONFIG_NAMES),
    ErrorCode.INVALID_TOPIC_EXCEPTION: ("this is not a valid topic name", "choose another name"),
    ErrorCode.INVALID_PARTITIONS: (
        "it cannot have this number of partitions",
        "choose another number with --partitions",
    ),
    ErrorCode.TOPIC_DELETION_DISABLED: (
        "deleting topics is disabled",
        "set delete.topic.enable=true for the broker",
    ),
    ErrorCode.GROUP_ID_NOT_FOUND: (
        "there is no such group",
        "`moldau groups list` shows what exists",
    ),
    ErrorCode.NON_EMPTY_GROUP: ("it has members", _STOP_MEMBERS),
    ErrorCode.UNKNOWN_MEMBER_ID: ("it has members again", _STOP_MEMBERS),
    ErrorCode.INVALID_GROUP_ID: ("this is not a valid group id", "it must not be empty"),
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: (
        "there is no such transactional id",
        "`moldau transactions list` shows what exists",
    ),
    ErrorCode.INVALID_REGULAR_EXPRESSION: (
        "this is not a regular expression",
        "a name with characters such as [ or * in it needs them escaped",
    ),
    ErrorCode.CONCURRENT_TRANSACTIONS: (
        "its transaction is still ending",
        "`moldau transactions describe` shows where it is open, `moldau status` whether a worker "
        "or the store is down",
    ),
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        "its timeout is above the broker's transaction.max.timeout.ms",
        "raise that to the timeout which `moldau transactions describe` shows",
    ),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ("not allowed on this topic", _ALLOW),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ("not allowed on this group", _ALLOW),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ("not allowed on the cluster", _ALLOW),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "not allowed on this transactional id",
        _ALLOW,
    ),
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: (
        "there are no delegation tokens here",
        "start the broker with --secure, or set delegation.token.secret.key under [broker]",
    ),
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND: (
        "there is no such token",
        "`moldau tokens list` shows those that exist; expired ones are removed",
    ),
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: (
        "only its owner and its renewers may do this",
        "log in as one of them with --command-config; the user that runs the broker may do it on "
        "its machine",
    ),
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: (
        "only for those who have logged in, and not with a token",
        "use --command-config with a password or a client certificate",
    ),
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: (
        "not allowed for this owner",
        "`moldau acls add --user YOU --tokens-of OWNER --operation create_tokens` allows it",
    ),
    ErrorCode.DELEGATION_TOKEN_EXPIRED: ("it has expired", "`moldau tokens create` makes another"),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ("its coordinator is still loading", _TRY_AGAIN),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ("its coordinator is not available", _TRY_AGAIN),
    ErrorCode.NOT_COORDINATOR: ("its coordinator is moving", _TRY_AGAIN),
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ("its leader is moving", _TRY_AGAIN),
    ErrorCode.LEADER_NOT_AVAILABLE: ("it has no leader at the moment", _TRY_AGAIN),
    ErrorCode.REQUEST_TIMED_OUT: ("the store did not answer in time", _TRY_AGAIN),
    ErrorCode.KAFKA_STORAGE_ERROR: ("the store is unavailable or full", _TRY_AGAIN),
}


DENIALS = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


class ClientError(Exception):
    """A request did not succeed; the text names the cause and the remedy.

    `code`: the broker's, 0 where it gave none.
    """

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class Unreachable(ClientError):
    """The broker, or one of its processes, does not answer."""


class Denied(ClientError):
    """No ACL allows it."""

    def __init__(self, text: str, subject: str, code: int, message: str | None) -> None:
        """`subject`: what was asked for; `message`: the broker's own, if it gave one."""
        super().__init__(text, code)
        self.subject = subject
        self.message = message


def refusal(
    subject: str, code: int, message: str | None = None, remedy: str | None = None
) -> ClientError:
    """The error for a reply with an error code; `message` is the broker's own, if it gave one.

    `remedy` replaces the usual one where the caller knows better.
    """
    name = error_name(code)
    cause, usual = _REASONS.get(code, ("the broker refuses", ""))
    remedy = remedy or usual
    if message and message != name:
        cause = message.rstrip(".")
    text = f"{subject}: {cause} ({name})" + (f"; {remedy}" if remedy else "")
    return Denied(text, subject, code, message) if code in DENIALS else ClientError(text, code)
