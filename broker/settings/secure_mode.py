"""The settings that `--secure` implies: SASL_SSL on the port, an authorizer, the super user
`admin`, and delegation tokens. Explicit settings take precedence. There is no I/O: the files are
created later."""

from __future__ import annotations

import os

import msgspec

from moldau.broker.settings.addresses import Address
from moldau.broker.settings.processes import ServeSettings

ADMIN = "admin"
TOKEN_SECRET = "delegation.token.secret.key"
_DEFAULTS = {
    "authorizer.class.name": "standard",
    # PLAIN is included for clients that support nothing else: connections are encrypted here.
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
}
_OWN_CERTIFICATE = ("ssl.keystore.location", "ssl.keystore.certificate.chain")


def security_dir(data_dir: str) -> str:
    return os.path.join(data_dir, "security")


def server_certificate(data_dir: str) -> str:
    """The file for the key and the certificate that `--secure` creates."""
    return os.path.join(security_dir(data_dir), "server.pem")


def token_secret(data_dir: str) -> str:
    """The file for the secret of delegation tokens that `--secure` creates."""
    return os.path.join(security_dir(data_dir), "token-secret")


def makes_token_secret(settings: ServeSettings) -> bool:
    """True unless a secret is set explicitly; an empty one turns tokens off."""
    return settings.secure and TOKEN_SECRET not in settings.broker


def with_token_secret(settings: ServeSettings, secret: str) -> ServeSettings:
    return msgspec.structs.replace(settings, broker={**settings.broker, TOKEN_SECRET: secret})


def makes_certificate(settings: ServeSettings) -> bool:
    """True unless the broker has its own certificate."""
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
