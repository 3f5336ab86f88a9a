"""Users for tests of logins: made over the wire, as the tools make them."""

from __future__ import annotations

import hashlib
import os

from moldau.broker.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tests.support.raw.client import RawClient

SHA_256, SHA_512 = 1, 2
HASHES = {SHA_256: "sha256", SHA_512: "sha512"}


def upsertion(
    user: str, password: str, mechanism: int = SHA_256, iterations: int = 4096
) -> ScramCredentialUpsertion:
    salt = os.urandom(16)
    name = HASHES.get(mechanism, "sha256")
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, max(iterations, 1))
    return ScramCredentialUpsertion(user, mechanism, iterations, salt, salted)


def alter(
    client: RawClient,
    *changes: ScramCredentialDeletion | ScramCredentialUpsertion,
) -> dict[str, AlterUserScramCredentialsResult]:
    request = AlterUserScramCredentialsRequest(
        [each for each in changes if isinstance(each, ScramCredentialDeletion)],
        [each for each in changes if isinstance(each, ScramCredentialUpsertion)],
    )
    return {result.user: result for result in client.call(request, 0).results}


def set_password(client: RawClient, user: str, password: str, iterations: int = 4096) -> None:
    """Set a user's password for both mechanisms."""
    both = (upsertion(user, password, each, iterations) for each in (SHA_256, SHA_512))
    results = alter(client, *both)
    assert results[user].error_code == 0, results


def remove_user(client: RawClient, user: str) -> None:
    both = (ScramCredentialDeletion(user, each) for each in (SHA_256, SHA_512))
    results = alter(client, *both)
    assert results[user].error_code == 0, results
