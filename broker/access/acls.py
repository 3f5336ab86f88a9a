"""Loads the ACLs of the store into the authorizer's index, and changes them.

Fails closed. After the store was emptied, only super users and the operator are served until an ACL
is created, even with `allow.everyone.if.no.acl.found`. The same holds while an entry cannot be
read, unless it can only have allowed something.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from moldau.broker.security.acl import EVERYONE, WILDCARD, Acl
from moldau.broker.security.acl_authorizer import AclAuthorizer, parse_super_users
from moldau.broker.security.acl_index import AclIndex
from moldau.broker.security.resources import Operation, PatternType, Permission, ResourceType
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.store.acls import AclRecord, AclStore
from moldau.broker.store.topics import Change, TopicStore

logger = logging.getLogger("moldau.access")

ACLS_AT_ONCE = 250  # indexed before other requests get a turn
_DENY_EVERYTHING = [
    Acl(kind, WILDCARD, PatternType.LITERAL, EVERYONE, WILDCARD, Operation.ALL, Permission.DENY)
    for kind in ResourceType
    if kind > ResourceType.ANY
]


def configured_authorizer(config: BrokerConfig) -> AclAuthorizer | None:
    """None if none is configured."""
    if not config.get("authorizer.class.name"):
        return None
    return AclAuthorizer(
        parse_super_users(config.get("super.users")),
        allow_if_no_acl=config.get_bool("allow.everyone.if.no.acl.found"),
    )


class Acls:
    """A `CachedTable` for changes of kind "acl"."""

    def __init__(
        self,
        store: AclStore,
        changes: TopicStore,
        authorizer: AclAuthorizer,
    ) -> None:
        self._store = store
        self._changes = changes
        self._authorizer = authorizer
        self.on_changed: Callable[[], None] = lambda: None
        self._parsed: dict[bytes, Acl] = {}
        self._loading = asyncio.Lock()
        self._is_emptied = False

    def all(self) -> set[Acl]:
        return set(self._parsed.values())

    # --- keeping in step ---

    async def load(self) -> None:
        """Loads run one at a time: one that began before a change must not replace a later one."""
        async with self._loading:
            texts = await self._store.all()
            index = AclIndex()
            parsed: dict[bytes, Acl] = {}
            is_open = True
            for number, text in enumerate(texts):
                if number % ACLS_AT_ONCE == ACLS_AT_ONCE - 1:
                    await asyncio.sleep(0)
                try:
                    acl = self._parsed.get(text) or Acl.parse(text.decode())
                except ValueError as fault:
                    is_open = is_open and text.startswith(b"ALLOW ")
                    logger.warning("an entry of moldau:acls cannot be read: %s", fault)
                    continue
                parsed[text] = acl
                index.add(acl)
            if parsed:
                self._is_emptied = False
            if not is_open or self._is_emptied:
                logger.critical("ACLs are missing: only super users and the operator are served")
                index = AclIndex(_DENY_EVERYTHING)
            self._parsed = parsed
            self._authorizer.use(index)
            self.on_changed()

    def store_emptied(self) -> None:
        """Call it before `load`."""
        self._is_emptied = True

    # --- changing ---

    async def add(self, acls: Iterable[Acl], created_by: str) -> None:
        """The change is in force on this worker on return, on others when they have applied it.
        Raises StoreFault."""
        record = AclRecord(created_by, time.time_ns() // 1_000_000)
        await self._store.add((acl.text for acl in acls), record)
        await self._announce()

    async def remove(self, acls: Iterable[Acl]) -> None:
        await self._store.remove(acl.text for acl in acls)
        await self._announce()

    async def _announce(self) -> None:
        await self.load()
        await self._changes.announce(Change("acl"))
