"""What `serve --secure` does when it starts: certificates and settings of clients before anything
else, the administrator in the store before clients can connect."""

from __future__ import annotations

import logging
import socket
from datetime import UTC, datetime

from moldau.broker.settings.processes import ServeSettings
from moldau.broker.settings.secure_mode import (
    makes_certificate,
    makes_token_secret,
    with_token_secret,
)
from moldau.ops.secure.files import SecurityFiles

logger = logging.getLogger("moldau.supervisor")

ALWAYS = ("localhost", "127.0.0.1", "::1")
_ANY = frozenset({"0.0.0.0", "::"})


def prepare_files(settings: ServeSettings) -> ServeSettings:
    """Makes what is missing, and returns the settings with what is in them. Raises BootFailure."""
    files = SecurityFiles(settings.data_dir)
    made = files.make(
        host_names(settings) if makes_certificate(settings) else None,
        datetime.now(UTC),
        makes_token_secret=makes_token_secret(settings),
    )
    for path in made:
        logger.info("made %s", path)
    if makes_token_secret(settings):
        return with_token_secret(settings, files.read_token_secret())
    return settings


async def before_clients(settings: ServeSettings, url: str) -> None:
    """Raises BootFailure."""
    # Imported here: its own imports take a while, and are of use with --secure only.
    from moldau.ops.secure.admin_user import ensure_admin

    await ensure_admin(url, SecurityFiles(settings.data_dir))


def tell(settings: ServeSettings) -> None:
    """Where the settings of clients are."""
    files = SecurityFiles(settings.data_dir)
    logger.info(
        "clients log in with the settings in %s (Java, --command-config) or %s (librdkafka, "
        "kcat -F); add users with: moldau users add NAME --generate --port %d",
        files.client,
        files.librdkafka,
        settings.port,
    )


def host_names(settings: ServeSettings) -> list[str]:
    """The host names by which clients may know this broker: those in its certificate."""
    names: list[str] = []
    for listener in settings.listening:
        if listener.uses_tls:
            names.append(listener.advertised_host)
            names.append(socket.gethostname() if listener.host in _ANY else listener.host)
    return list(dict.fromkeys([*names, *ALWAYS]))
