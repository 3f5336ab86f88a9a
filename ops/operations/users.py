"""Users that log in with a password: find them, set their passwords, remove them.

A password is salted and hashed here, and only the result is sent: the broker never sees it. Both
SCRAM mechanisms are written, so that any client can use either.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from moldau.broker.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from moldau.ops.client import ClientError, Cluster, refusal
from moldau.ops.client.scram import salted_password

MECHANISMS: Mapping[int, str] = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
ITERATIONS = 16_384  # Kafka's maximum: guessing offline is that much slower
SALT_BYTES = 24
GENERATED_BYTES = 24


def find_users(
    cluster: Cluster, names: list[str] | None = None
) -> dict[str, list[tuple[int, int]]]:
    """Mechanism and iterations of each credential; `names` None: all users. Raises ClientError."""
    wanted = None if names is None else [UserName(name) for name in names]
    answer = cluster.call(DescribeUserScramCredentialsRequest(wanted))
    if answer.error_code:
        raise refusal("users", answer.error_code, answer.error_message)
    found = {}
    for one in answer.results:
        if one.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            continue
        if one.error_code:
            raise refusal(f"user {one.user}", one.error_code, one.error_message)
        found[one.user] = [(each.mechanism, each.iterations) for each in one.credential_infos]
    return dict(sorted(found.items()))


def set_password(cluster: Cluster, user: str, password: str) -> None:
    """The user is added if it does not exist. Raises ClientError."""
    upsertions = []
    for number, mechanism in MECHANISMS.items():
        salt = secrets.token_bytes(SALT_BYTES)
        salted = salted_password(mechanism, password, salt, ITERATIONS)
        upsertions.append(ScramCredentialUpsertion(user, number, ITERATIONS, salt, salted))
    _alter(cluster, user, AlterUserScramCredentialsRequest(upsertions=upsertions))


def remove_user(cluster: Cluster, user: str) -> None:
    """Raises ClientError."""
    found = find_users(cluster, [user])
    if user not in found:
        raise ClientError(f"there is no user {user}", ErrorCode.RESOURCE_NOT_FOUND)
    delete_credentials(cluster, user, found[user])


def delete_credentials(cluster: Cluster, user: str, credentials: list[tuple[int, int]]) -> None:
    deletions = [ScramCredentialDeletion(user, kind) for kind, _ in credentials]
    _alter(cluster, user, AlterUserScramCredentialsRequest(deletions))


def generate_password() -> str:
    return secrets.token_urlsafe(GENERATED_BYTES)


def _alter(cluster: Cluster, user: str, request: AlterUserScramCredentialsRequest) -> None:
    for result in cluster.call(request).results:
        if result.error_code:
            raise refusal(f"user {user}", result.error_code, result.error_message)
