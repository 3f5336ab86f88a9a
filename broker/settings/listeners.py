"""The listeners of `moldau serve`, derived from its options and Kafka's keys: names are resolved,
TLS settings combined, mistakes reported. There is no I/O: files and ports are checked later."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from itertools import combinations

from moldau.broker.settings.addresses import PROTOCOLS, WILDCARD_HOSTS, Address, Protocol
from moldau.broker.settings.kafka.broker_keys import BROKER_KEYS
from moldau.broker.settings.kafka.config_key import InvalidConfig
from moldau.broker.settings.kafka.sasl_keys import MECHANISMS
from moldau.broker.settings.kafka.validate import LISTENER_PREFIX
from moldau.broker.settings.processes import ConfigError, Listener, ServeSettings, TlsSettings
from moldau.broker.settings.sasl import SaslSettings, read_sasl


def resolved(settings: ServeSettings) -> ServeSettings:
    """Return `settings` with the listeners that follow from its options. Raises ConfigError."""
    addresses = settings.listeners or [Address("PLAINTEXT", settings.host, settings.port)]
    advertised = {each.name: each for each in settings.advertised_listeners}
    unknown = sorted(advertised.keys() - {each.name for each in addresses})
    if unknown:
        raise ConfigError(
            f"advertised-listeners names {', '.join(unknown)}, which listeners does not: "
            "use the same names in both"
        )
    found = []
    for address in addresses:
        protocol = _protocol(address.name, settings.listener_security_protocol_map)
        to_clients = advertised.get(address.name) or Address(
            address.name, _host_for_clients(settings.advertised_host, address), address.port
        )
        found.append(
            Listener(
                name=address.name,
                protocol=protocol,
                host=address.host,
                port=address.port,
                advertised_host=to_clients.host,
                advertised_port=to_clients.port,
                tls=_tls(address.name, protocol, settings.broker),
                sasl=_sasl(address.name, protocol, settings.broker),
            )
        )
    _check_blocks(found, settings.workers)
    _check_prefixes(settings.broker, found)
    return settings.with_listeners(found)


def value_for(listener: str, configs: Mapping[str, str], name: str) -> str | None:
    """Return the value of a broker key for a listener: with its prefix, else without, else the
    default. Raises ConfigError."""
    key = BROKER_KEYS[name]
    text = _own_value(listener, configs, name)
    if text is None:
        text = configs.get(name)
    if text is None:
        return key.default
    try:
        return key.canonical(text)
    except InvalidConfig as error:
        raise ConfigError(f"[broker]: {error}") from None


def _own_value(listener: str, configs: Mapping[str, str], name: str) -> str | None:
    for prefix in _prefixes(listener):
        if prefix + name in configs:
            return configs[prefix + name]
    return None


def _prefixes(listener: str) -> list[str]:
    """Return the prefixes of a listener's keys. Kafka writes the name in lower case there, and an
    environment variable cannot distinguish `_` from a dot."""
    name = listener.lower()
    return [f"{LISTENER_PREFIX}{each}." for each in dict.fromkeys((name, name.replace("_", ".")))]


def _check_prefixes(configs: Mapping[str, str], listeners: Sequence[Listener]) -> None:
    known = tuple(prefix for each in listeners for prefix in _prefixes(each.name))
    for name in configs:
        if name.startswith(LISTENER_PREFIX) and not name.startswith(known):
            names = ", ".join(each.name.lower() for each in listeners)
            raise ConfigError(f"[broker]: {name}: there is no such listener, only {names}")


def _protocol(name: str, known: Mapping[str, Protocol]) -> Protocol:
    protocol = known.get(name) or PROTOCOLS.get(name)
    if protocol is None:
        raise ConfigError(
            f"listener {name} has no protocol: name it after one ({', '.join(PROTOCOLS)}), or add "
            f"{name}:PROTOCOL to listener-security-protocol-map"
        )
    return protocol


def _host_for_clients(chosen: str | None, address: Address) -> str:
    """Return the host for clients: a wildcard is an address to listen on, not one to reach."""
    if chosen is not None:
        return chosen
    return socket.gethostname() if address.host in WILDCARD_HOSTS else address.host


def _check_blocks(listeners: Sequence[Listener], workers: int) -> None:
    for each in listeners:
        for what, first in (("port", each.port), ("advertised port", each.advertised_port)):
            if first + workers > 65535:
                raise ConfigError(
                    f"{what} {first} with {workers} workers needs ports up to {first + workers}, "
                    "past 65535: choose a lower port"
                )
    for one, other in combinations(listeners, 2):
        hosts = {one.host, other.host}
        if len(hosts) == 2 and not hosts & WILDCARD_HOSTS:
            continue
        if abs(one.port - other.port) <= workers:
            raise ConfigError(
                f"listeners {one.name} (ports {one.port} to {one.port + workers}) and {other.name} "
                f"({other.port} to {other.port + workers}) overlap: each needs {1 + workers} ports "
                f"in a row, for the router and {workers} workers; choose ports further apart"
            )


def _tls(name: str, protocol: Protocol, configs: Mapping[str, str]) -> TlsSettings | None:
    if protocol not in {"SSL", "SASL_SSL"}:
        return None

    def value(key: str) -> str | None:
        return value_for(name, configs, f"ssl.{key}") or None

    authentication = value("client.auth") or "none"
    if protocol == "SASL_SSL" and _own_value(name, configs, "ssl.client.auth") is None:
        authentication = "none"
    tls = TlsSettings(
        keystore=value("keystore.location"),
        certificate_chain=value("keystore.certificate.chain"),
        key=value("keystore.key"),
        key_password=value("key.password"),
        truststore=value("truststore.location"),
        trusted=value("truststore.certificates"),
        client_auth=authentication,
        protocols=(value("enabled.protocols") or "").split(","),
        ciphers=[each for each in (value("cipher.suites") or "").split(",") if each],
        principal_rules=value("principal.mapping.rules") or "DEFAULT",
        reload_ms=int(value_for(name, configs, "moldau.ssl.reload.interval.ms") or 0),
    )
    problem = _tls_problem(tls)
    if problem:
        raise ConfigError(f"listener {name}: {problem}")
    return tls


def _sasl(name: str, protocol: Protocol, configs: Mapping[str, str]) -> SaslSettings | None:
    if protocol not in {"SASL_PLAINTEXT", "SASL_SSL"}:
        return None

    def value(key: str) -> str | None:
        mechanism, _, rest = key.partition(".")
        if mechanism.upper() not in MECHANISMS:
            return value_for(name, configs, key)
        own = _own_value(name, configs, key)
        return None if own is None else value_for(name, {rest: own}, rest)

    try:
        return read_sasl(value)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"listener {name}: {error}") from None


def _tls_problem(tls: TlsSettings) -> str:
    if tls.keystore is None and tls.certificate_chain is None:
        return (
            "it needs a certificate: set ssl.keystore.location under [broker] to a PEM file with "
            "the private key and the certificate chain, or start with --secure, which makes them"
        )
    if tls.keystore is not None and (tls.certificate_chain or tls.key):
        return "set ssl.keystore.location or ssl.keystore.certificate.chain with its key, not both"
    if tls.certificate_chain is not None and tls.key is None:
        return "ssl.keystore.certificate.chain is set, and ssl.keystore.key is missing"
    if tls.truststore is not None and tls.trusted is not None:
        return "set ssl.truststore.location or ssl.truststore.certificates, not both"
    if tls.client_auth == "required" and tls.truststore is None and tls.trusted is None:
        return (
            "ssl.client.auth=required needs the authorities of clients' certificates: set "
            "ssl.truststore.location to a PEM file"
        )
    return ""
