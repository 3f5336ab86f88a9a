"""Why a broker could not be reached or asked, in words: the cause, and the remedy if one is known.

TLS and SASL fail in ways whose own messages say little; a client that uses neither on a port that
needs them learns nothing but the end of its connection.
"""

from __future__ import annotations

import ssl
from typing import NamedTuple

from moldau.broker.wire.primitives import MalformedMessage
from moldau.ops.client.sasl_tokens import AuthenticationFailed
from moldau.ops.client.security import PLAINTEXT, InvalidSecurity, Security

_OTHER_NAME = frozenset({62, 64})  # X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH
_EXPIRED = 10
_PLAIN_PORT = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
_NEEDS_CERTIFICATE = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "BAD_CERTIFICATE", "UNKNOWN_CA")
_CONFIG = "a file of client settings (--command-config FILE)"


class TlsAlert(MalformedMessage):
    """The reply is one of TLS: a client without TLS has reached a port with it."""


class Fault(NamedTuple):
    cause: str
    remedy: str = ""


def explain(fault: Exception, security: Security) -> Fault:
    """Describe an error that a connection raised, when it was made or used."""
    match fault:
        case AuthenticationFailed() | InvalidSecurity():
            return Fault(str(fault))
        case TlsAlert():
            return Fault(
                "it speaks TLS on this port",
                f"set security.protocol=SSL or SASL_SSL in {_CONFIG}",
            )
        case ssl.SSLCertVerificationError():
            return _certificate(fault)
        case ssl.SSLError():
            return _tls(fault)
        case ConnectionError() if security == PLAINTEXT and not fault.errno:
            # It was accepted and then closed; a refused connection has a number.
            return Fault(
                str(fault),
                f"if it requires TLS or a login, say so in {_CONFIG}",
            )
        case ConnectionResetError() if security.tls is not None:
            return Fault(
                "it closed the connection instead of speaking TLS",
                "is this a port with TLS? security.protocol says so",
            )
    return Fault((fault.strerror if isinstance(fault, OSError) else None) or str(fault))


def _certificate(fault: ssl.SSLCertVerificationError) -> Fault:
    if fault.verify_code in _OTHER_NAME:
        return Fault(
            f"its certificate is for another name ({fault.verify_message})",
            "use a name that is in the certificate, or set ssl.endpoint.identification.algorithm "
            "to nothing to accept any",
        )
    if fault.verify_code == _EXPIRED:
        return Fault("its certificate has expired", "renew it on the broker")
    return Fault(
        f"its certificate is not to be trusted ({fault.verify_message})",
        "name the CA that signed it: ssl.truststore.location or ssl.ca.location, a PEM file",
    )


def _tls(fault: ssl.SSLError) -> Fault:
    reason = fault.reason or ""
    if isinstance(fault, ssl.SSLEOFError) or reason in _PLAIN_PORT:
        return Fault(
            "it does not answer in TLS",
            "is this a port with TLS? if not, security.protocol is PLAINTEXT or SASL_PLAINTEXT",
        )
    if any(what in reason for what in _NEEDS_CERTIFICATE):
        return Fault(
            f"it ended the TLS handshake ({reason})",
            "it may want a certificate of the client, signed by a CA it trusts: "
            "ssl.keystore.location, a PEM file with certificate and key",
        )
    return Fault(f"TLS failed: {reason or fault}")
