"""The HTTP status of a page that shows an error: whose fault it is. Pure."""

from __future__ import annotations

from moldau.broker.errors import ErrorCode
from moldau.ops.client import RETRIABLE, ClientError, Unreachable

NOT_THERE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.RESOURCE_NOT_FOUND,
    }
)
CONFLICTS = frozenset(
    {ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NON_EMPTY_GROUP, ErrorCode.CONCURRENT_TRANSACTIONS}
)


def status_of(error: ClientError) -> int:
    """502 if the broker does not answer; else the request is wrong."""
    if isinstance(error, Unreachable):
        return 502
    if error.code in NOT_THERE:
        return 404
    if error.code in CONFLICTS:
        return 409
    if error.code in RETRIABLE or error.code == ErrorCode.UNKNOWN_SERVER_ERROR:
        return 502
    return 400
