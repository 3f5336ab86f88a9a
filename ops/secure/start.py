"""What `serve --secure` does when it starts: certificates and settings of clients before anything
else, the administrator in the store before clients can connect."""

from __future__ import annotations

import logging
import socket
from datetime import UTC, datetime

from broker.settings.processes import ServeSettings
from broker.settings.secure import makes_certificate
from ops.secure.files import SecurityFiles

logger = logging.getLogger("moldau.supervisor")

ALWAYS = ("localhost", "127.0.0.1", "::1")
_ANY = frozenset({"0.0.0.0", "::"})


def prepare_files(settings: ServeSettings) -> None:
    """Raises BootFailure."""
    files = SecurityFiles(settings.data_dir)
    made = files.make(
        host_names(settings) if makes_certificate(settings) else None, datetime.now(UTC)
    )
    for path in made:
        logger.info("made %s", path)


async def before_clients(settings: ServeSettings, url: str) -> None:
    """Raises BootFailure."""
    # Imported here: what it needs takes a while, and is of use with --secure only.
    from ops.secure.admin_user import ensure_admin

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
    """By which clients may know this broker: those in its certificate."""
    names: list[str] = []
    for listener in settings.listening:
        if listener.uses_tls:
            names.append(listener.advertised_host)
            names.append(socket.gethostname() if listener.host in _ANY else listener.host)
    return list(dict.fromkeys([*names, *ALWAYS]))
