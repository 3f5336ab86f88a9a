"""Listeners: Kafka's notation, what follows from it, and the messages for mistakes."""

import pytest

from moldau.broker.settings.addresses import Address, advertised_listeners, listeners, protocol_map
from moldau.broker.settings.listeners import value_for
from moldau.broker.settings.loading import load_settings
from moldau.broker.settings.processes import (
    ConfigError,
    Endpoint,
    Listener,
    ProcessSockets,
    ServeSettings,
)

PEM = {"ssl.keystore.location": "/etc/moldau/server.pem"}


def load(env: dict[str, str] | None = None, **flags: str) -> ServeSettings:
    return load_settings({"workers": "2", **flags}, env or {})


def with_broker(configs: dict[str, str], **flags: str) -> ServeSettings:
    names = {f"MOLDAU_BROKER_{name.upper().replace('.', '_')}": configs[name] for name in configs}
    return load(names, **flags)


# --- the notation ---


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("PLAINTEXT://127.0.0.1:9092", [Address("PLAINTEXT", "127.0.0.1", 9092)]),
        ("ssl://[::1]:9092", [Address("SSL", "::1", 9092)]),
        ("SASL_SSL://:9092", [Address("SASL_SSL", "0.0.0.0", 9092)]),
        (
            " IN://a.example:1 , OUT://b:2 ",
            [Address("IN", "a.example", 1), Address("OUT", "b", 2)],
        ),
        (["IN://a:1", "OUT://b:2"], [Address("IN", "a", 1), Address("OUT", "b", 2)]),
    ],
)
def test_listeners_are_written_as_in_kafka(text: object, found: list[Address]) -> None:
    assert listeners(text) == found
    assert listeners(",".join(map(str, found))) == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "without empty elements"),
        ("SSL://a:1,", "without empty elements"),
        ("127.0.0.1:9092", "expected NAME://host:port"),
        ("SSL://a", "expected NAME://host:port"),
        ("SSL://::1:9092", "expected NAME://host:port"),
        ("S.L://a:1", "expected NAME://host:port"),
        ("SSL://a:0", "a port from 1 to 65534"),
        ("SSL://a:99999", "a port from 1 to 65534"),
        ("SSL://a:1,ssl://b:2", "listener SSL is named twice"),
    ],
)
def test_a_slip_in_listeners_is_named(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        listeners(text)
    with pytest.raises(ConfigError, match=f"--listeners: .*{reason}"):
        load(listeners=text or " ")


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_a_wildcard_cannot_be_advertised(host: str) -> None:
    with pytest.raises(ValueError, match="not an address clients can connect to"):
        advertised_listeners(f"SSL://{host}:9092")


def test_names_of_listeners_mean_protocols() -> None:
    assert protocol_map("in:plaintext, OUT:SASL_SSL") == {"IN": "PLAINTEXT", "OUT": "SASL_SSL"}
    for text, reason in (
        ("IN", "expected NAME:PROTOCOL"),
        ("IN:TLS", "the protocols are PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("IN:SSL,in:SSL", "IN is named twice"),
    ):
        with pytest.raises(ValueError, match=reason):
            protocol_map(text)


# --- what follows from it ---


def test_without_listeners_host_and_port_are_the_only_one() -> None:
    assert load(port="2000").listening == [Listener(port=2000, advertised_port=2000)]


def test_each_listener_has_a_block_of_ports_and_endpoints_of_its_own() -> None:
    settings = with_broker(
        PEM,
        listeners="INSIDE://127.0.0.1:9092,SSL://0.0.0.0:19092",
        listener_security_protocol_map="INSIDE:PLAINTEXT",
        advertised_listeners="SSL://kafka.example.com:443",
    )
    inside, outside = settings.listening
    assert (inside.name, inside.protocol, inside.uses_tls) == ("INSIDE", "PLAINTEXT", False)
    assert (outside.protocol, outside.uses_tls, outside.uses_sasl) == ("SSL", True, False)
    assert (settings.host, settings.port) == ("127.0.0.1", 9092)  # of the first
    worker = settings.worker(
        1, redis_url="x", sockets=ProcessSockets(3, [[4], [5]]), worker_sockets=[]
    )
    assert [each.port for each in worker.listeners] == [9094, 19094]
    assert worker.descriptors == [3, 4, 5]
    assert worker.endpoints("INSIDE") == [
        Endpoint(0, "127.0.0.1", 9093),
        Endpoint(1, "127.0.0.1", 9094),
    ]
    assert worker.endpoints("SSL") == [
        Endpoint(0, "kafka.example.com", 444),
        Endpoint(1, "kafka.example.com", 445),
    ]
    assert worker.endpoints("") == worker.endpoints("INSIDE")
    router = settings.router(
        0, sockets=ProcessSockets(3, [[4], [5]]), worker_sockets=[], max_idle_ms=1
    )
    assert [each.port for each in router.listeners] == [9092, 19092]


def test_advertised_alone_the_router_is_named_by_listener() -> None:
    settings = with_broker(
        PEM, listeners="PLAINTEXT://127.0.0.1:9092,SSL://127.0.0.1:19092", advertise="router"
    )
    ports = [listener.endpoints(2, "router")[0].port for listener in settings.listening]
    assert ports == [9092, 19092]


def test_the_advertised_host_counts_for_listeners_that_are_not_advertised_by_name() -> None:
    settings = load(
        listeners="A://127.0.0.1:1000,B://127.0.0.1:2000",
        listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT",
        advertised_listeners="B://b.example:2000",
        advertised_host="a.example",
    )
    assert [each.advertised_host for each in settings.listening] == ["a.example", "b.example"]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"listeners": "SSL://a:1", "port": "2"}, "port and listeners are both set"),
        ({"listeners": "SSL://a:1", "host": "b"}, "host and listeners are both set"),
        ({"listeners": "X://a:1"}, "listener X has no protocol.*add X:PROTOCOL to listener-sec"),
        (
            {"listeners": "PLAINTEXT://a:9092,SSL://a:9094"},
            r"\(ports 9092 to 9094\) and SSL \(9094 to 9096\) overlap: .* 3 ports in a row",
        ),
        ({"listeners": "PLAINTEXT://a:9092,SSL://:9090"}, "overlap"),
        ({"listeners": "PLAINTEXT://a:65534"}, "past 65535"),
        ({"advertised_listeners": "PLAINTEXT://a:65534"}, "advertised port .* past 65535"),
        ({"advertised_listeners": "SSL://a:1"}, "names SSL, which listeners does not"),
    ],
)
def test_listeners_that_do_not_fit_are_refused(flags: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        with_broker(PEM, **flags)


def test_different_addresses_may_have_the_same_ports() -> None:
    assert len(with_broker(PEM, listeners="PLAINTEXT://a:9092,SSL://b:9092").listening) == 2


# --- Kafka's keys of TLS ---


def test_a_prefix_sets_a_key_for_one_listener() -> None:
    configs = {
        "ssl.keystore.location": "/all.pem",
        "listener.name.out.ssl.keystore.location": "/out.pem",
        "listener.name.sasl_ssl.ssl.client.auth": "required",
    }
    assert value_for("OUT", configs, "ssl.keystore.location") == "/out.pem"
    assert value_for("IN", configs, "ssl.keystore.location") == "/all.pem"
    assert value_for("IN", configs, "ssl.client.auth") == "none"
    assert value_for("SASL_SSL", configs, "ssl.client.auth") == "required"


def test_a_variable_can_set_a_key_for_one_listener() -> None:
    settings = with_broker(
        {**PEM, "listener.name.sasl_ssl.ssl.enabled.protocols": "TLSv1.3"},
        listeners="SASL_SSL://127.0.0.1:9092",
    )
    tls = settings.listening[0].tls
    assert tls is not None
    assert tls.protocols == ["TLSv1.3"]


def test_with_sasl_client_certificates_are_asked_for_by_prefix_only() -> None:
    configs = {**PEM, "ssl.client.auth": "required", "ssl.truststore.location": "/ca.pem"}
    both = "SSL://127.0.0.1:1000,SASL_SSL://127.0.0.1:2000"
    asked = [
        each.tls and each.tls.client_auth for each in with_broker(configs, listeners=both).listening
    ]
    assert asked == ["required", "none"]
    configs["listener.name.sasl_ssl.ssl.client.auth"] = "requested"
    asked = [
        each.tls and each.tls.client_auth for each in with_broker(configs, listeners=both).listening
    ]
    assert asked == ["required", "requested"]


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({}, "listener SSL: it needs a certificate: set ssl.keystore.location"),
        ({"ssl.keystore.certificate.chain": "x"}, "ssl.keystore.key is missing"),
        ({**PEM, "ssl.keystore.key": "x"}, "not both"),
        ({**PEM, "ssl.client.auth": "required"}, "set ssl.truststore.location"),
        ({**PEM, "ssl.client.auth": "sometimes"}, "must be one of none, requested, required"),
        ({**PEM, "ssl.enabled.protocols": "TLSv1.1"}, "must be a list of TLSv1.2, TLSv1.3"),
        ({**PEM, "ssl.keystore.type": "JKS"}, "only PEM .*keytool -importkeystore"),
        ({**PEM, "ssl.truststore.type": "PKCS12"}, "openssl pkcs12"),
        ({**PEM, "listener.name.other.ssl.client.auth": "none"}, "no such listener, only ssl"),
        ({**PEM, "listener.name.ssl.num.partitions": "1"}, "only keys of ssl and sasl can"),
    ],
)
def test_tls_that_cannot_work_is_refused(configs: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        with_broker(configs, listeners="SSL://127.0.0.1:9092")


def test_who_is_known_to_a_listener() -> None:
    configs = {**PEM, "ssl.truststore.location": "/ca.pem"}
    names = "PLAINTEXT://a:1000,SSL://a:2000,SASL_PLAINTEXT://a:3000,SASL_SSL://a:4000"
    known = [each.authenticates for each in with_broker(configs, listeners=names).listening]
    assert known == [False, False, True, True]
    configs["ssl.client.auth"] = "required"
    known = [each.authenticates for each in with_broker(configs, listeners=names).listening]
    assert known == [False, True, True, True]
