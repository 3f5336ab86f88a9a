"""What `--secure` means for the other settings: SASL_SSL on the port, an authorizer, `admin`, who
may do everything, and delegation tokens. What is set by name stays as it is set. No I/O: the files
are made later."""

from __future__ import annotations

import os

import msgspec

from moldau.broker.settings.addresses import Address
from moldau.broker.settings.processes import ServeSettings

ADMIN = "admin"
TOKEN_SECRET = "delegation.token.secret.key"
_DEFAULTS = {
    "authorizer.class.name": "standard",
    # PLAIN too, for clients that have nothing else: it is encrypted here.
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
}
_OWN_CERTIFICATE = ("ssl.keystore.location", "ssl.keystore.certificate.chain")


def security_dir(data_dir: str) -> str:
    return os.path.join(data_dir, "security")


def server_certificate(data_dir: str) -> str:
    """The file with the key and the certificate that `--secure` makes."""
    return os.path.join(security_dir(data_dir), "server.pem")


def token_secret(data_dir: str) -> str:
    """The file with the secret of delegation tokens that `--secure` makes."""
    return os.path.join(security_dir(data_dir), "token-secret")


def makes_token_secret(settings: ServeSettings) -> bool:
    """Unless one is set by name, be it empty: then there are no tokens."""
    return settings.secure and TOKEN_SECRET not in settings.broker


def with_token_secret(settings: ServeSettings, secret: str) -> ServeSettings:
    return msgspec.structs.replace(settings, broker={**settings.broker, TOKEN_SECRET: secret})


def makes_certificate(settings: ServeSettings) -> bool:
    """Unless the broker has one of its own."""
    location = settings.broker.get("ssl.keystore.location")
    return settings.secure and location == server_certificate(settings.data_dir)


def secured(settings: ServeSettings) -> ServeSettings:
    if not settings.secure:
        return settings
    given = settings.broker
    broker = {**_DEFAULTS, **given}
    if not any(given.get(key) for key in _OWN_CERTIFICATE):
        broker["ssl.keystore.location"] = server_certificate(settings.data_dir)
    supers = [one.strip() for one in given.get("super.users", "").split(";") if one.strip()]
    broker["super.users"] = ";".join(dict.fromkeys([*supers, f"User:{ADMIN}"]))
    listeners = settings.listeners or [Address("SASL_SSL", settings.host, settings.port)]
    return msgspec.structs.replace(settings, broker=broker, listeners=listeners)
