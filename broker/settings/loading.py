"""Reads the settings of `moldau serve` from flags, the environment, a TOML file and defaults.

An option has one name in four places: `--tail-cache-bytes` on the command line,
`MOLDAU_TAIL_CACHE_BYTES` in the environment, `tail-cache-bytes` in the TOML file, and the field
`tail_cache_bytes` of `ServeSettings`. A flag wins over the environment, the environment over the
file, the file over the default. The table `OPTIONS` (`options.py`) feeds all of them and `--help`.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from moldau.broker.settings.kafka.config_key import InvalidConfig
from moldau.broker.settings.kafka.validate import validate_static
from moldau.broker.settings.listeners import resolved
from moldau.broker.settings.options import ENV_PREFIX, OPTIONS, Option
from moldau.broker.settings.processes import ConfigError, ServeSettings
from moldau.broker.settings.secure_mode import secured

_BY_NAME = {option.name: option for option in OPTIONS}
BROKER_ENV_PREFIX = "MOLDAU_BROKER_"
# Variables of Moldau's other commands, which are not options of `serve`.
OTHER_ENV = frozenset({"MOLDAU_RUNTIME_DIR", "MOLDAU_BOOTSTRAP", "MOLDAU_COMMAND_CONFIG"})
OTHER_ENV_PREFIXES = (BROKER_ENV_PREFIX, "MOLDAU_LOAD_")
# Variables that Kubernetes sets for every port of a service called "moldau", or "moldau-…".
_SERVICE_LINK = re.compile(
    r"MOLDAU_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)?)"
)


def load_settings(
    flags: Mapping[str, object | None], env: Mapping[str, str], file: str | None = None
) -> ServeSettings:
    """Load settings from command line flags (by field name), the environment and a TOML file.

    A flag that was not given is None or absent. The default of `file` is MOLDAU_CONFIG.
    """
    values: dict[str, Any] = {"data_dir": default_data_dir(env)}
    path = file or env.get(ENV_PREFIX + "CONFIG")
    broker: dict[str, str] = {}
    if path:
        document = _read_toml(path)
        broker.update(_broker_table(path, document.pop("broker", {})))
        for key, raw in document.items():
            option = _option_named(key, path)
            values[option.field] = _parse(option, raw, f"{path}: {key}")

    broker.update(_broker_env(env))
    _refuse_misspelt_env(env)
    for option in OPTIONS:
        text = env.get(option.env)
        if text is not None and text != "":
            values[option.field] = _parse(option, text, option.env)
        flag = flags.get(option.field)
        if flag is not None:
            values[option.field] = _parse(option, flag, f"--{option.name}")

    if "listeners" in values:
        for name in ("host", "port"):
            if name in values:
                raise ConfigError(
                    f"{name} and listeners are both set: listeners takes the place of host and "
                    f"port, so leave {name} out"
                )
    settings = secured(ServeSettings(**values, broker=broker))
    _check(settings)
    try:
        validate_static(settings.broker)
    except InvalidConfig as error:
        raise ConfigError(f"[broker]: {error}") from None
    return resolved(settings)


def default_data_dir(env: Mapping[str, str]) -> str:
    base = env.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.abspath(os.path.join(base, "moldau"))


def _parse(option: Option, raw: object, where: str) -> object:
    try:
        return option.parse(raw)
    except ValueError as error:
        if where == option.env and isinstance(raw, str) and raw.startswith("tcp://"):
            # Kubernetes sets MOLDAU_PORT=tcp://… for a service that is called "moldau".
            raise ConfigError(
                f"{where}: {raw!r} looks like a Kubernetes service link; "
                "set enableServiceLinks: false, or name the service differently"
            ) from None
        raise ConfigError(f"{where}: {error}") from None


def _read_toml(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _option_named(key: str, path: str) -> Option:
    option = _BY_NAME.get(key)
    if option is not None:
        return option
    hint = near_miss(key.replace("_", "-"), [*_BY_NAME, "broker"])
    if not hint and "." in key:
        hint = "; Kafka's broker settings go under [broker]"
    raise ConfigError(f"{path}: unknown key {key!r}{hint}")


def near_miss(name: str, known: list[str]) -> str:
    """Return `; did you mean 'x'?` if a known name is close, otherwise nothing."""
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def _refuse_misspelt_env(env: Mapping[str, str]) -> None:
    """Refuse unknown names, which would change nothing without anybody noticing. Variables that
    Kubernetes sets by itself are ignored."""
    known = [option.env for option in OPTIONS] + [ENV_PREFIX + "CONFIG", *OTHER_ENV]
    suffixes = [name.removeprefix(ENV_PREFIX) for name in known]
    for name in sorted(env):
        if (
            name in known
            or not name.startswith(ENV_PREFIX)
            or name.startswith(OTHER_ENV_PREFIXES)
            or _is_service_link(name, env[name])
        ):
            continue
        matches = difflib.get_close_matches(
            name.removeprefix(ENV_PREFIX), suffixes, n=1, cutoff=0.6
        )
        hint = f"did you mean {ENV_PREFIX}{matches[0]}?" if matches else "see serve --help"
        raise ConfigError(f"unknown variable {name}; {hint}")


def _is_service_link(name: str, value: str) -> bool:
    """Check for a Kubernetes service link: MOLDAU_WEB_PORT=tcp://… is one, MOLDAU_WEB_PORT=80 is a
    mistake."""
    found = _SERVICE_LINK.fullmatch(name)
    if found is None:
        return False
    return re.search(r"SERVICE|_(TCP|UDP|SCTP)", name) is not None or "://" in value


def _broker_env(env: Mapping[str, str]) -> dict[str, str]:
    """MOLDAU_BROKER_NUM_PARTITIONS=3 sets num.partitions=3, as in Kafka's container images."""
    return {
        name.removeprefix(BROKER_ENV_PREFIX).lower().replace("_", "."): value
        for name, value in env.items()
        if name.startswith(BROKER_ENV_PREFIX)
    }


def _broker_table(path: str, table: object) -> dict[str, str]:
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: broker: expected a table, [broker]")
    return dict(_flatten(path, "", table))


def _flatten(path: str, prefix: str, table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Flatten Kafka's dotted keys, which TOML turns into nested tables unless they are quoted."""
    for key, value in table.items():
        name = prefix + key
        match value:
            case dict():
                yield from _flatten(path, name + ".", value)
            case bool():
                yield name, "true" if value else "false"
            case str() | int() | float():
                yield name, str(value)
            case list() if all(isinstance(item, str | int) for item in value):
                yield name, ",".join(str(item) for item in value)
            case _:
                raise ConfigError(f"{path}: broker.{name}: expected text, a number or true/false")


def _check(settings: ServeSettings) -> None:
    if settings.connection_inflight_bytes > settings.inflight_bytes:
        raise ConfigError(
            "connection-inflight-bytes is larger than inflight-bytes, what a whole worker may hold"
        )
