"""Parsing one value, and the words of a refusal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.settings.kafka import ConfigKey, ConfigType, InvalidConfig
from moldau.broker.settings.kafka.config_key import (
    ListOf,
    OneOf,
    Range,
    ThrottledReplicas,
    Validator,
)


def key(kind: ConfigType, validator: Validator | None = None) -> ConfigKey:
    return ConfigKey("some.key", kind, None, "A key.", validator)


@pytest.mark.parametrize(
    ("kind", "text", "value", "printed"),
    [
        (ConfigType.BOOLEAN, " TRUE ", True, "true"),
        (ConfigType.BOOLEAN, "false", False, "false"),
        (ConfigType.INT, " +7 ", 7, "7"),
        (ConfigType.INT, "-2147483648", -(2**31), "-2147483648"),
        (ConfigType.LONG, "9223372036854775807", 2**63 - 1, "9223372036854775807"),
        (ConfigType.SHORT, "-32768", -32768, "-32768"),
        (ConfigType.DOUBLE, "1", 1.0, "1.0"),
        (ConfigType.DOUBLE, ".25", 0.25, "0.25"),
        (ConfigType.DOUBLE, "5e-1", 0.5, "0.5"),
        (ConfigType.STRING, " text ", "text", "text"),
        (ConfigType.LIST, " a , b,c ", ("a", "b", "c"), "a,b,c"),
        (ConfigType.LIST, "  ", (), ""),
        (ConfigType.PASSWORD, "secret", "secret", "secret"),
        (ConfigType.CLASS, "a.B", "a.B", "a.B"),
    ],
)
def test_a_value_is_read_and_printed_as_kafka_does(
    kind: ConfigType, text: str, value: object, printed: str
) -> None:
    assert key(kind).parse(text) == value
    assert type(key(kind).parse(text)) is type(value)
    assert key(kind).canonical(text) == printed


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ConfigType.BOOLEAN, "yes"),
        (ConfigType.BOOLEAN, ""),
        (ConfigType.INT, "2147483648"),
        (ConfigType.INT, "1_000"),
        (ConfigType.INT, "1.0"),
        (ConfigType.INT, ""),
        (ConfigType.INT, "٣"),
        (ConfigType.SHORT, "32768"),
        (ConfigType.LONG, "-9223372036854775809"),
        (ConfigType.LONG, "9" * 10_000),
        (ConfigType.DOUBLE, "nan"),
        (ConfigType.DOUBLE, "inf"),
        (ConfigType.DOUBLE, "half"),
        (ConfigType.DOUBLE, "."),
    ],
)
def test_a_value_of_another_type_is_refused(kind: ConfigType, text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"^Invalid value .* for configuration some\.key: must"):
        key(kind).parse(text)


@pytest.mark.parametrize(
    ("kind", "validator", "good", "bad", "allowed"),
    [
        (ConfigType.INT, Range(1), ["1", "2147483647"], ["0", "-1"], "must be at least 1"),
        (ConfigType.DOUBLE, Range(0, 1), ["0", "0.5", "1"], ["1.01", "-.1"], "from 0 to 1"),
        (ConfigType.INT, Range(1, 9, also=(-1,)), ["1", "9", "-1"], ["0", "10"], "to 9 or -1"),
        (ConfigType.INT, Range(50, 50), ["50"], ["49", "51"], "must be 50"),
        (ConfigType.STRING, OneOf(("a", "b")), ["a", " b"], ["A", "", "a,b"], "one of a, b"),
        (ConfigType.LIST, ListOf(("a", "b")), ["", "a", "b,a"], ["c", "a,c"], "list of a, b"),
        (ConfigType.LIST, ListOf(("a", "b")), ["a"], ["a,a"], "twice"),
        (ConfigType.LIST, ListOf(("a", "b")), ["a"], ["a,,b", ","], "empty elements"),
        (ConfigType.LIST, ListOf(may_be_empty=False), ["x"], [""], "must not be empty"),
        (
            ConfigType.LIST,
            ThrottledReplicas(),
            ["", "*", "0:1", "0:1,2:3"],
            ["0", "0:1,*", "a:b"],
            "list of partition:broker",
        ),
    ],
)
def test_a_refusal_names_key_value_and_what_is_allowed(
    kind: ConfigType, validator: Validator, good: list[str], bad: list[str], allowed: str
) -> None:
    for text in good:
        key(kind, validator).parse(text)
    for text in bad:
        with pytest.raises(InvalidConfig) as refusal:
            key(kind, validator).parse(text)
        assert "some.key" in str(refusal.value)
        assert repr(text) in str(refusal.value)
        assert allowed in str(refusal.value)


def test_a_secret_is_not_repeated_in_a_refusal() -> None:
    secret = ConfigKey(
        "some.password", ConfigType.PASSWORD, None, "A key.", OneOf(("a",)), sensitive=True
    )
    with pytest.raises(InvalidConfig) as refusal:
        secret.parse("hunter2")
    assert "hunter2" not in str(refusal.value)
    assert "some.password" in str(refusal.value)


@given(st.sampled_from(ConfigType), st.text(max_size=40))
def test_any_text_is_read_or_refused_and_printing_is_stable(kind: ConfigType, text: str) -> None:
    try:
        printed = key(kind).canonical(text)
    except InvalidConfig:
        return
    assert key(kind).canonical(printed) == printed
    assert key(kind).parse(printed) == key(kind).parse(text)
