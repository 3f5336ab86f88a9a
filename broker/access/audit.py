"""Audit: logins, denials and changes, in the log and in the topic `__moldau_audit`.

    key    the principal; the address for a login that failed
    value  a JSON object, the same as in the log: event, time_ms, worker, principal, host, listener,
           and by the event:
           login            mechanism; token, the id of the delegation token, if it was one
           login_failed     mechanism, user, reason; without a principal
           denied           operation, resource, name, request
           changed          what ("topic", "config", "acl", "user", "quota", "token"), action,
                            name; more
           …_repeated       count: how many more of the same came in that second (logins) or
                            minute (denials): only the first of them is an event of its own. A
                            count without a name is of everything beyond the limit
           events_dropped   count: the store was too slow, or unavailable

Writing is off the request path (see EventTopic): the topic may lose events, the log has them
all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import msgspec

from moldau.broker.log.logs import Logs
from moldau.broker.log.writing.event_topic import EventTopic
from moldau.broker.security.identity import Identity
from moldau.broker.security.repeat_counter import RepeatCounter
from moldau.broker.security.resources import Operation, ResourceType
from moldau.broker.security.tokens import Token
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.topics.topics import AUDIT, Topics

logger = logging.getLogger("moldau.audit")

EVERY_S = 1.0
LOGINS_MS, DENIALS_MS = 1000, 60_000
MAX_CHARACTERS = 500  # of strings that clients choose
_CREATED_WITH = {
    "cleanup.policy": "delete",
    "retention.ms": str(30 * 86_400_000),
    "retention.bytes": str(256 << 20),
}

_encode = msgspec.json.Encoder().encode

Login = tuple[str, str, str, str]  # principal, host, mechanism, token
Failure = str  # host
Denial = tuple[str, Operation, ResourceType, str]


def is_audited(config: BrokerConfig, *, uses_sasl: bool) -> bool:
    wanted = config.get("moldau.audit.enable")
    if wanted == "auto":
        return uses_sasl or bool(config.get("authorizer.class.name"))
    return wanted == "true"


class Audit:
    """The audit topic and what goes there; nothing is audited without one."""

    def __init__(self, topic: EventTopic | None = None, worker: int = 0) -> None:
        self._topic = topic
        self._worker = worker
        self._logins: RepeatCounter[Login] = RepeatCounter(LOGINS_MS)
        self._failures: RepeatCounter[Failure] = RepeatCounter(LOGINS_MS)
        self._denials: RepeatCounter[Denial] = RepeatCounter(DENIALS_MS)

    @property
    def is_enabled(self) -> bool:
        return self._topic is not None

    # --- what happens ---

    def login(self, identity: Identity, mechanism: str) -> None:
        if self._topic is None:
            return
        key = (identity.principal, identity.host, mechanism, identity.token)
        if self._logins.is_first(key, identity.principal, now_ms()):
            token = {"token": identity.token} if identity.token else {}
            self._note("login", identity, mechanism=mechanism, **token)

    def login_failed(self, host: str, mechanism: str, name: str, reason: str) -> None:
        """`name`: as the client gave it. Never pass its secret."""
        if self._topic is not None and self._failures.is_first(host, host, now_ms()):
            facts = {"mechanism": mechanism, "user": _short(name), "reason": _short(reason)}
            self._put("login_failed", host, {"host": host, **facts})

    def denied(
        self,
        identity: Identity,
        operation: Operation,
        resource: ResourceType,
        name: str,
        request: str,
    ) -> None:
        if self._topic is None:
            return
        name, who = _short(name), identity.principal
        if self._denials.is_first((who, operation, resource, name), who, now_ms()):
            facts = {"operation": operation.name, "resource": resource.name, "name": name}
            self._note("denied", identity, **facts, request=request)

    def changed(
        self, identity: Identity, what: str, action: str, name: str, **details: Any
    ) -> None:
        """The cluster was changed. `action`: "created", "altered", "deleted"."""
        if self._topic is not None:
            facts = {"what": what, "action": action, "name": _short(name)}
            self._note("changed", identity, **facts, **details)

    def token_expired(self, identity: Identity, token_id: str, token: Token) -> None:
        """An expired token was removed from the store."""
        self.changed(identity, "token", "expired", token_id, owner=_short(token.owner))

    def _note(self, event: str, identity: Identity, **facts: Any) -> None:
        who = {"principal": identity.principal, "host": identity.host}
        self._put(event, identity.principal, {**who, "listener": identity.listener, **facts})

    def _put(self, event: str, key: str, facts: dict[str, Any]) -> None:
        assert self._topic is not None
        now = now_ms()
        document = {"event": event, "time_ms": now, "worker": self._worker, **facts}
        logger.info("%s", _encode(document).decode())
        self._topic.put(key, document, now)

    # --- writing ---

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.flush()

    async def flush(self) -> None:
        if self._topic is None:
            return
        now = now_ms()
        self._note_repeats(now)
        if self._topic.queue:
            await self._topic.flush(now)

    def _note_repeats(self, now: int) -> None:
        for login, count in self._logins.ended(now):
            principal, host, mechanism, token = login or ("", "", "", "")
            facts = {"principal": principal, "host": host, "mechanism": mechanism, "count": count}
            if token:
                facts["token"] = token
            self._put("login_repeated", principal, facts)
        for failed, count in self._failures.ended(now):
            host = failed or ""
            self._put("login_failed_repeated", host, {"host": host, "count": count})
        for denial, count in self._denials.ended(now):
            if denial is None:
                self._put("denied_repeated", "", {"count": count})
                continue
            principal, operation, resource, name = denial
            facts = {"principal": principal, "operation": operation.name}
            facts |= {"resource": resource.name, "name": name, "count": count}
            self._put("denied_repeated", principal, facts)

    async def close(self, seconds: float) -> None:
        """Write the last events when the worker stops."""
        if self._topic is not None:
            self._note_repeats(now_ms() + DENIALS_MS)
            await self._topic.close(seconds, now_ms())


def make_audit(
    config: BrokerConfig, topics: Topics, logs: Logs, worker: int, *, uses_sasl: bool
) -> Audit:
    if not is_audited(config, uses_sasl=uses_sasl):
        return Audit()
    return Audit(EventTopic(AUDIT, topics, logs, worker, _CREATED_WITH), worker)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _short(text: str) -> str:
    return text[:MAX_CHARACTERS]
