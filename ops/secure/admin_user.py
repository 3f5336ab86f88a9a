"""The first user: `admin` with the password of client.properties, in the store before clients can
connect. A password that was changed since then stays, and so does it if the user was removed."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time

from moldau.broker.errors import StoreFault
from moldau.broker.process import BootFailure
from moldau.broker.security.accounts import Alteration
from moldau.broker.security.sasl import Mechanism
from moldau.broker.security.scram import credential_from
from moldau.broker.settings.secure_mode import ADMIN
from moldau.ops.client.scram import salted_password
from moldau.ops.secure.files import SecurityFiles

logger = logging.getLogger("moldau.supervisor")

MECHANISMS = (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512)
ITERATIONS = 16_384
SALT_BYTES = 24


async def ensure_admin(url: str, files: SecurityFiles) -> None:
    """Write the user to the store of this URL. A new password replaces the one that is there.
    Raises BootFailure."""
    password = files.password()
    if password is None:
        return  # the settings are somebody else's
    try:
        await asyncio.to_thread(_ensure, url, password, files.unstored.exists())
    except StoreFault as fault:
        raise BootFailure(f"user {ADMIN} cannot be written to the store: {fault}") from None
    files.unstored.unlink(missing_ok=True)


def _ensure(url: str, password: str, is_new: bool) -> None:
    from moldau.broker.store.blocking import BlockingStore  # redis-py takes a while

    with BlockingStore(url) as store:
        known = store.user(ADMIN)
        if not is_new and (known is not None or store.has_users()):
            return  # without users it is another store, or one that was emptied
        now = time.time_ns() // 1_000_000
        credentials = {}
        for kind in MECHANISMS:
            salt = secrets.token_bytes(SALT_BYTES)
            salted = salted_password(kind, password, salt, ITERATIONS)
            credentials[kind] = credential_from(kind, salt, ITERATIONS, salted)
        account = Alteration(credentials).apply(known, now)
        assert account is not None
        store.set_user(ADMIN, account)
    logger.info("user %s has the password of client.properties", ADMIN)
