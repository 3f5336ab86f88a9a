"""Errors of transactions in the form that each version of Produce knows."""

from __future__ import annotations

from moldau.broker.errors import ErrorCode, KafkaError

FIRST_VERSION_WITH_ABORTABLE = 11
FIRST_VERSION_WITH_CONCURRENT = 12

# The coordinator cannot be asked right now: clients know these of their own requests to it only.
_UNAVAILABLE = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


def for_version(fault: BaseException, version: int) -> BaseException:
    """What a transactional producer gets: retriable where it should send the batch again."""
    if not isinstance(fault, KafkaError):
        return fault
    code = fault.code
    if code is ErrorCode.PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    elif code in _UNAVAILABLE or (
        code is ErrorCode.CONCURRENT_TRANSACTIONS and version < FIRST_VERSION_WITH_CONCURRENT
    ):
        code = ErrorCode.NOT_ENOUGH_REPLICAS
    elif code is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_VERSION_WITH_ABORTABLE:
        code = ErrorCode.INVALID_TXN_STATE
    return fault if code is fault.code else KafkaError(code, fault.message)
