"""Kafka's TLS keys, for every listener or, with the prefix `listener.name.<name>.`, for one."""

from typing import Final

from moldau.broker.settings.kafka.config_key import ConfigKey, ConfigType, ListOf, OneOf, Range

_PEM_ONLY = (
    "only PEM is supported. To convert a JKS file: keytool -importkeystore -srckeystore store.jks "
    "-destkeystore store.p12 -deststoretype PKCS12; a PKCS12 file: openssl pkcs12 -in store.p12 "
    "-nodes -out store.pem"
)
_PEM = OneOf(("PEM",), {"JKS": _PEM_ONLY, "PKCS12": _PEM_ONLY})
_FROM_FILE = " Looked at again when the file changes, and on SIGHUP."


def _key(
    name: str,
    kind: ConfigType,
    default: str | None,
    documentation: str,
    validator: ListOf | OneOf | Range | None = None,
) -> ConfigKey:
    return ConfigKey(
        name,
        kind,
        default,
        documentation,
        validator,
        read_only=True,
        sensitive=kind is ConfigType.PASSWORD,
    )


SSL_KEYS: Final = (
    _key(
        "ssl.cipher.suites",
        ConfigType.LIST,
        "",
        "Cipher suites of TLS 1.2, by their IANA or OpenSSL names; empty: OpenSSL's choice. Those "
        "of TLS 1.3 are OpenSSL's: name all of them, or none to do without TLS 1.3.",
        ListOf(),
    ),
    _key(
        "ssl.client.auth",
        ConfigType.STRING,
        "none",
        "Whether clients show a certificate: required, requested or none. On a listener with SASL "
        "only with the prefix of that listener, as in Kafka.",
        OneOf(("none", "requested", "required")),
    ),
    _key(
        "ssl.enabled.protocols",
        ConfigType.LIST,
        "TLSv1.2,TLSv1.3",
        "Versions of TLS that are spoken.",
        ListOf(("TLSv1.2", "TLSv1.3"), may_be_empty=False),
    ),
    _key(
        "ssl.key.password",
        ConfigType.PASSWORD,
        None,
        "The password of the private key, if it is encrypted.",
    ),
    _key(
        "ssl.keystore.certificate.chain",
        ConfigType.PASSWORD,
        None,
        "The certificate and its chain as PEM text, instead of ssl.keystore.location.",
    ),
    _key(
        "ssl.keystore.key",
        ConfigType.PASSWORD,
        None,
        "The private key as PEM text, with ssl.keystore.certificate.chain.",
    ),
    _key(
        "ssl.keystore.location",
        ConfigType.STRING,
        None,
        "A PEM file with the private key and the certificate with its chain." + _FROM_FILE,
    ),
    _key("ssl.keystore.type", ConfigType.STRING, "PEM", "PEM; others are refused.", _PEM),
    _key(
        "ssl.principal.mapping.rules",
        ConfigType.STRING,
        "DEFAULT",
        "How the subject of a client's certificate becomes its user name: a list of "
        "RULE:pattern/replacement/[LU] and DEFAULT, of which the first that matches counts.",
    ),
    _key(
        "ssl.truststore.certificates",
        ConfigType.PASSWORD,
        None,
        "The authorities of clients' certificates as PEM text.",
    ),
    _key(
        "ssl.truststore.location",
        ConfigType.STRING,
        None,
        "A PEM file with the authorities of clients' certificates." + _FROM_FILE,
    ),
    _key("ssl.truststore.type", ConfigType.STRING, "PEM", "PEM; others are refused.", _PEM),
    _key(
        "moldau.ssl.reload.interval.ms",
        ConfigType.LONG,
        "10000",
        "How often the files of certificates are looked at for changes.",
        Range(10),
    ),
)
