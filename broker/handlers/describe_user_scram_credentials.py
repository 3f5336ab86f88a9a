"""DescribeUserScramCredentials (key 50, KIP-554): mechanisms and iterations, never keys."""

from __future__ import annotations

from collections import Counter

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode
from moldau.broker.handlers.details.authorization import (
    CLUSTER_DENIED,
    CLUSTER_DENIED_TEXT,
    is_cluster_denied,
)
from moldau.broker.security.resources import Operation
from moldau.broker.security.scram import NUMBERS
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


async def handle(
    broker: Broker, request: DescribeUserScramCredentialsRequest, call: Call
) -> DescribeUserScramCredentialsResponse:
    if is_cluster_denied(broker, call, Operation.DESCRIBE):
        return _denied(request)
    users = [user.name for user in request.users or []] or list(broker.users.accounts)
    named = Counter(users)
    return DescribeUserScramCredentialsResponse(
        error_message=None,
        results=[_described(broker, name, times) for name, times in named.items()],
    )


def _denied(
    request: DescribeUserScramCredentialsRequest,
) -> DescribeUserScramCredentialsResponse:
    return DescribeUserScramCredentialsResponse(
        error_code=CLUSTER_DENIED,
        error_message=CLUSTER_DENIED_TEXT,
        results=[
            DescribeUserScramCredentialsResult(user.name, CLUSTER_DENIED, CLUSTER_DENIED_TEXT)
            for user in request.users or ()
        ],
    )


def _described(broker: Broker, name: str, times: int) -> DescribeUserScramCredentialsResult:
    account = broker.users.accounts.get(name)
    result = DescribeUserScramCredentialsResult(name, error_message=None)
    if times > 1:
        result.error_code = ErrorCode.DUPLICATE_RESOURCE
        result.error_message = (
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        )
    elif account is None:
        result.error_code = ErrorCode.RESOURCE_NOT_FOUND
        result.error_message = f"Attempt to describe a user credential that does not exist: {name}"
    else:
        result.credential_infos = [
            CredentialInfo(NUMBERS[mechanism], credential.iterations)
            for mechanism, credential in account.credentials.items()
        ]
    return result
