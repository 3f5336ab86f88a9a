"""The options of the source: those of Spark's own Kafka source, checked when the source is made.

Names are case-insensitive, as in Spark. An unknown option is an error: a misspelt `startingOffset`
would otherwise silently read from somewhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from moldau.ops.client import InvalidSecurity, Security, TopicPartition, parse_address, security_of
from moldau.ops.client.batches import READ_COMMITTED, READ_UNCOMMITTED
from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.source.fetch import FetchSettings
from moldau.ops.pipeline.source.offsets import EARLIEST, LATEST, Offsets, parse, parse_partitions

RECORDS, RANGES = "records", "ranges"
FAIL, SKIP = "fail", "skip"
_STRATEGIES = ("assign", "subscribe", "subscribepattern")
_KNOWN = frozenset(
    {
        "startingoffsets", "endingoffsets", "startingtimestamp", "endingtimestamp",
        "startingoffsetsbytimestamp", "endingoffsetsbytimestamp",
        "startingoffsetsbytimestampstrategy", "maxoffsetspertrigger", "minoffsetspertrigger",
        "maxtriggerdelay", "minpartitions", "maxrecordsperpartition", "failondataloss",
        "includeheaders", "onunreadable", "moldau.rows",
    }
)  # fmt: skip
# Options of Spark's source that have no effect here: no consumer group, no pool of consumers.
_IGNORED = frozenset({"groupidprefix", "path", "fetchoffset.numretries",
                              "fetchoffset.retryintervalms"})  # fmt: skip
_IGNORED_PREFIXES = ("kafkaconsumer.cache.", "kafkaconsumer.fetcheddata.")
_POLL_TIMEOUT = "kafkaconsumer.polltimeoutms"
# Spark refuses them too: the source itself decides where to start and how to decode.
_REFUSED = {
    "auto.offset.reset": "use startingOffsets instead",
    "key.deserializer": "keys are binary; cast or decode the column",
    "value.deserializer": "values are binary; cast or decode the column",
    "enable.auto.commit": "Spark keeps the offsets in its checkpoint",
    "interceptor.classes": "there are none",
}
_DELAY = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_DELAY_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Boundary(NamedTuple):
    """Where to start or to end: offsets or timestamps, for each partition or for `all` of them."""

    option: str
    each: Offsets | None = None
    all: int = LATEST
    by_time: bool = False


class Options(NamedTuple):
    fetch: FetchSettings
    assign: tuple[TopicPartition, ...] | None
    subscribe: tuple[str, ...] | None
    pattern: str | None
    batch_starting: Boundary
    stream_starting: Boundary
    ending: Boundary
    latest_when_no_match: bool
    max_offsets: int | None
    min_offsets: int | None
    max_delay_s: float
    min_partitions: int
    max_records: int | None
    headers: bool
    rows: str
    on_unreadable: str


def read_options(given: Mapping[str, str]) -> Options:
    """Options of a read, checked. Raises PipelineError."""
    options = {name.lower(): str(value) for name, value in given.items()}
    _check_names(options)
    chosen = [name for name in _STRATEGIES if name in options]
    if len(chosen) != 1:
        raise PipelineError(
            "exactly one of the options assign, subscribe and subscribePattern is needed, to "
            f"choose the topics; {len(chosen)} are given"
        )
    assign = options.get("assign")
    subscribe = options.get("subscribe")
    names = tuple(filter(None, (name.strip() for name in (subscribe or "").split(","))))
    if subscribe is not None and not names:
        raise PipelineError("subscribe: name at least one topic, several with commas between")
    rows = options.get("moldau.rows", RECORDS)
    if rows not in (RECORDS, RANGES):
        raise PipelineError(f"moldau.rows: want {RECORDS} or {RANGES}, not {rows!r}")
    fetch = _fetch_settings(options)
    return Options(
        fetch,
        None if assign is None else tuple(sorted(parse_partitions("assign", assign))),
        None if subscribe is None else names,
        _pattern(options),
        _boundary(options, "starting", EARLIEST),
        _boundary(options, "starting", LATEST),
        _ending(options),
        _strategy(options) == "latest",
        _limit(options, "maxOffsetsPerTrigger"),
        _limit(options, "minOffsetsPerTrigger"),
        _delay(options.get("maxtriggerdelay", "15m")),
        _limit(options, "minPartitions") or 0,
        _limit(options, "maxRecordsPerPartition"),
        _flag(options, "includeHeaders", default=False),
        rows,
        _on_unreadable(options, FAIL if fetch.fail_on_data_loss else SKIP),
    )


def _check_names(options: Mapping[str, str]) -> None:
    for name in options:
        if name.startswith("kafka.") or name in _KNOWN or name in _STRATEGIES:
            continue
        if name in _IGNORED or name == _POLL_TIMEOUT:
            continue
        if not name.startswith(_IGNORED_PREFIXES):
            known = ", ".join(sorted(_KNOWN | set(_STRATEGIES)))
            raise PipelineError(
                f"there is no option {name!r}; there are kafka.bootstrap.servers, {known}"
            )
    for name, remedy in _REFUSED.items():
        if f"kafka.{name}" in options:
            raise PipelineError(f"kafka.{name} is not supported: {remedy}")


def _security(options: Mapping[str, str]) -> Security:
    """Read kafka.security.protocol, kafka.sasl.* and kafka.ssl.*, the names of Spark's source."""
    given = {
        name.removeprefix("kafka."): value
        for name, value in options.items()
        if name.startswith("kafka.")
    }
    try:
        return security_of(given)
    except InvalidSecurity as error:
        raise PipelineError(f"kafka.* options: {error}") from None


def _fetch_settings(options: Mapping[str, str]) -> FetchSettings:
    servers = options.get("kafka.bootstrap.servers", "")
    try:
        bootstrap = tuple(parse_address(one) for one in servers.split(",") if one.strip())
    except ValueError as error:
        raise PipelineError(f"kafka.bootstrap.servers: {error}") from None
    if not bootstrap:
        raise PipelineError("kafka.bootstrap.servers is needed: where the broker is, HOST:PORT")
    isolation = options.get("kafka.isolation.level", "read_uncommitted")
    levels = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
    if isolation not in levels:
        raise PipelineError(f"kafka.isolation.level: want {' or '.join(levels)}, not {isolation!r}")
    default = FetchSettings(bootstrap)
    partition_bytes = _number(options, "kafka.max.partition.fetch.bytes", default.max_bytes)
    all_bytes = _number(options, "kafka.fetch.max.bytes", 1 << 30)
    return default._replace(
        security=_security(options),
        isolation=levels[isolation],
        max_bytes=min(partition_bytes, all_bytes),
        max_wait_ms=_number(options, "kafka.fetch.max.wait.ms", default.max_wait_ms),
        min_bytes=_number(options, "kafka.fetch.min.bytes", default.min_bytes),
        timeout_s=_number(options, "kafka.request.timeout.ms", 30_000) / 1000,
        patience_s=_number(options, "kafkaConsumer.pollTimeoutMs", 120_000) / 1000,
        check_crcs=_flag(options, "kafka.check.crcs", default=True),
        client_id=options.get("kafka.client.id", default.client_id),
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
    )


def _ending(options: Mapping[str, str]) -> Boundary:
    found = _boundary(options, "ending", LATEST)
    values = [found.all] if found.each is None else list(found.each.values())
    if not found.by_time and EARLIEST in values:
        raise PipelineError("endingOffsets: a read cannot end at the earliest offset (-2)")
    return found


def _boundary(options: Mapping[str, str], edge: str, default: int) -> Boundary:
    """The boundary, in Spark's order: one timestamp, timestamps by partition, offsets."""
    option = f"{edge}Timestamp"
    if option.lower() in options:
        return Boundary(option, None, _number(options, option, 0), by_time=True)
    option = f"{edge}OffsetsByTimestamp"
    if option.lower() in options:
        return Boundary(option, parse(option, options[option.lower()]), by_time=True)
    option = f"{edge}Offsets"
    text = options.get(option.lower())
    if text is None:
        return Boundary(option, None, default)
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.strip().lower() in words:
        return Boundary(option, None, words[text.strip().lower()])
    return Boundary(option, parse(option, text))


def _strategy(options: Mapping[str, str]) -> str:
    chosen = options.get("startingoffsetsbytimestampstrategy", "error").lower()
    if chosen not in ("error", "latest"):
        raise PipelineError(
            f"startingOffsetsByTimestampStrategy: want error or latest, not {chosen!r}"
        )
    return chosen


def _on_unreadable(options: Mapping[str, str], default: str) -> str:
    chosen = options.get("onunreadable", default).lower()
    if chosen not in (FAIL, SKIP):
        raise PipelineError(f"onUnreadable: want {FAIL} or {SKIP}, not {chosen!r}")
    return chosen


def _pattern(options: Mapping[str, str]) -> str | None:
    pattern = options.get("subscribepattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise PipelineError(f"subscribePattern: {pattern!r}: {error}") from None
    return pattern


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower(), str(default)).strip()
    if not text.isascii() or not text.isdigit():
        raise PipelineError(f"{name}: want a number from 0, not {text!r}")
    return int(text)


def _limit(options: Mapping[str, str], name: str) -> int | None:
    if name.lower() not in options:
        return None
    number = _number(options, name, 0)
    if not number:
        raise PipelineError(f"{name}: want a number above 0")
    return number


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise PipelineError(f"{name}: want true or false, not {text!r}")
    return text == "true"


def _delay(text: str) -> float:
    found = _DELAY.fullmatch(text.strip().lower())
    if found is None:
        raise PipelineError(f"maxTriggerDelay: want a time such as 15m or 30s, not {text!r}")
    return int(found[1]) * _DELAY_UNITS[found[2] or "ms"]
