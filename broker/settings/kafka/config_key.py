"""The definition of a configuration key: its type, default, allowed values and documentation.

This is the vocabulary of the declarations in `topic_keys.py` and `broker_keys.py`, and the parsing
of one value. It declares no key and resolves nothing.
"""

import enum
import re
from collections.abc import Mapping
from ipaddress import ip_address

import msgspec


class ConfigType(enum.IntEnum):
    """The types, as in DescribeConfigs v3+."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(enum.IntEnum):
    """The source of a value, as on the wire; a lower code has precedence."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class InvalidConfig(ValueError):
    """A key or value that is refused: INVALID_CONFIG. The message is for the user."""


class InvalidConfigRequest(InvalidConfig):
    """An alteration that is invalid for any key: INVALID_REQUEST, as in Kafka."""


Value = bool | int | float | str | tuple[str, ...]


class Range(msgspec.Struct, frozen=True):
    """Numbers from minimum to maximum, and the special ones in `also`."""

    minimum: float
    maximum: float | None = None
    also: tuple[int, ...] = ()

    def problem(self, value: Value) -> str | None:
        if not isinstance(value, int | float):
            raise TypeError(f"a range cannot check {value!r}")
        inside = value >= self.minimum and (self.maximum is None or value <= self.maximum)
        return None if inside or value in self.also else f"must be {self._words()}"

    def _words(self) -> str:
        if self.maximum is None:
            words = f"at least {self.minimum}"
        elif self.maximum == self.minimum:
            words = f"{self.minimum}"
        else:
            words = f"from {self.minimum} to {self.maximum}"
        return " or ".join([words, *map(str, self.also)])


class OneOf(msgspec.Struct, frozen=True):
    """One of several words, case-sensitive; `refused` gives the reason for known words it
    rejects."""

    words: tuple[str, ...]
    refused: Mapping[str, str] = {}

    def problem(self, value: Value) -> str | None:
        if value in self.refused and isinstance(value, str):
            return self.refused[value]
        return None if value in self.words else f"must be one of {', '.join(self.words)}"


class ListOf(msgspec.Struct, frozen=True):
    """A list without duplicates, of these words, or of any words if none are named."""

    words: tuple[str, ...] = ()
    may_be_empty: bool = True

    def problem(self, value: Value) -> str | None:
        if not isinstance(value, tuple):
            raise TypeError(f"a list cannot check {value!r}")
        if not value:
            return None if self.may_be_empty else "must not be empty"
        if "" in value:
            return "must not have empty elements"
        if len(set(value)) != len(value):
            return "must not name a value twice"
        if self.words and not set(value) <= set(self.words):
            return f"must be a list of {', '.join(self.words)}"
        return None


class ThrottledReplicas(msgspec.Struct, frozen=True):
    """`*`, or a list of partition:broker pairs."""

    def problem(self, value: Value) -> str | None:
        if not isinstance(value, tuple):
            raise TypeError(f"a list cannot check {value!r}")
        if value == ("*",) or all(re.fullmatch(r"([0-9]+:[0-9]+)?", part) for part in value):
            return None
        return "must be * or a list of partition:broker"


class Principals(msgspec.Struct, frozen=True):
    """Principals, separated by semicolons, since names of certificates contain commas."""

    def problem(self, value: Value) -> str | None:
        parts = [part.strip() for part in str(value).split(";")]
        wrong = [part for part in parts if part and not all(part.partition(":"))]
        if wrong:
            return f"must be principals such as User:admin, separated by semicolons: {wrong[0]!r}"
        return None


class CountsByAddress(msgspec.Struct, frozen=True):
    """`10.0.0.7:200,::1:50`: the number follows the last colon. Host names are not resolved."""

    def problem(self, value: Value) -> str | None:
        try:
            self.read(str(value))
        except ValueError as fault:
            return f"must be a list of address:count ({fault})"
        return None

    @staticmethod
    def read(text: str) -> dict[str, int]:
        """Parse the counts. Raises ValueError."""
        counts = {}
        for part in filter(None, map(str.strip, text.split(","))):
            address, _, count = part.rpartition(":")
            if not re.fullmatch(r"\s*[0-9]{1,9}", count):
                raise ValueError(f"{part!r} has no count")
            counts[str(ip_address(address.strip().strip("[]")))] = int(count)
        return counts


Validator = Range | OneOf | ListOf | Principals | ThrottledReplicas | CountsByAddress

_BITS = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}
# This is narrower than int() and float(): values that Java refuses ("1_000", "nan") are refused.
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_COMMA = re.compile(r"\s*,\s*")


class ConfigKey(msgspec.Struct, frozen=True):
    """One configuration key.

    `default` is None where Kafka's is null. `synonym` names the broker key from which a topic key
    takes its value when the topic does not set it. `fallbacks` are used for an unset broker key, in
    order of precedence; `milliseconds` is their unit, 0 if they have none. `inert` keys are
    accepted because tools set them, and have no effect; their documentation says so. `set_by` names
    the options of `moldau serve` that determine a key that cannot be set otherwise.
    """

    name: str
    type: ConfigType
    default: str | None
    documentation: str
    validator: Validator | None = None
    read_only: bool = False
    sensitive: bool = False
    synonym: str | None = None
    fallbacks: tuple[str, ...] = ()
    milliseconds: int = 0
    inert: bool = False
    set_by: str = ""

    def parse(self, text: str) -> Value:
        """Return the typed value of `text`. Raises InvalidConfig with the key, the value and what
        is allowed."""
        value = self._typed(text.strip())
        problem = self.validator.problem(value) if self.validator is not None else None
        if problem is not None:
            raise self._invalid(text, problem)
        return value

    def canonical(self, text: str) -> str:
        """Return `text` as Kafka prints the parsed value: ` TRUE ` is true, `a , b` is a,b."""
        value = self.parse(text)
        match value:
            case bool():
                return "true" if value else "false"
            case tuple():
                return ",".join(value)
            case _:
                return str(value)

    def _typed(self, text: str) -> Value:
        match self.type:
            case ConfigType.BOOLEAN:
                if text.lower() not in {"true", "false"}:
                    raise self._invalid(text, "must be true or false")
                return text.lower() == "true"
            case ConfigType.SHORT | ConfigType.INT | ConfigType.LONG:
                bits = _BITS[self.type]
                # Check the length first: int() of a huge text is slow, then fails.
                if len(text) > 32 or not _INTEGER.fullmatch(text):
                    raise self._invalid(text, f"must be a whole number of {bits} bits")
                number = int(text)
                if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
                    raise self._invalid(text, f"must be a whole number of {bits} bits")
                return number
            case ConfigType.DOUBLE:
                if not _DECIMAL.fullmatch(text):
                    raise self._invalid(text, "must be a number")
                return float(text)
            case ConfigType.LIST:
                return tuple(_COMMA.split(text)) if text else ()
            case _:
                return text

    def _invalid(self, text: str, problem: str) -> InvalidConfig:
        shown = "[hidden]" if self.sensitive else repr(text[:200])
        return InvalidConfig(f"Invalid value {shown} for configuration {self.name}: {problem}")
