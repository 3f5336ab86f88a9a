"""Configurations that are set by name in the store: read, changed, checked and written back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.settings.kafka import InvalidConfig, InvalidConfigRequest

# From what is set for a resource to what shall be.
ConfigChange = Callable[[dict[str, str]], dict[str, str]]
Configs = dict[str, str]


class NamedConfigs(NamedTuple):
    """Of one kind of resource."""

    read: Callable[[], Awaitable[dict[str, Configs]]]
    # Name, what is set, what shall be; False when something else is set by now.
    replace: Callable[[str, Configs | None, Configs], Awaitable[bool]]
    check: Callable[[Configs], Any]  # raises InvalidConfig

    async def alter(self, name: str, change: ConfigChange, *, validate_only: bool) -> bool:
        """Whether something was written. Raises KafkaError."""
        while True:
            old = (await self.read()).get(name)
            new = changed(old, change, self.check)
            if validate_only or (old is None and not new):
                return False
            if await self.replace(name, old, new):
                return True


def changed(old: Configs | None, change: ConfigChange, check: Callable[[Configs], Any]) -> Configs:
    """What `change` makes of it. Raises KafkaError."""
    try:
        new = change(dict(old or {}))
        check(new)
    except InvalidConfigRequest as refusal:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(refusal)) from None
    except InvalidConfig as refusal:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(refusal)) from None
    return new
