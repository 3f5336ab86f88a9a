"""VISIBLE_NAMES: finds the topics and groups that a user may describe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moldau.broker.broker import Broker
from moldau.broker.handlers.private.metrics import in_slices
from moldau.broker.private.table import VisibleNames
from moldau.broker.security.identity import Identity
from moldau.broker.security.resources import CLUSTER_NAME, Operation, ResourceType
from moldau.broker.server.login import Logins


class Visibility:
    def __init__(self, broker: Broker, logins: Mapping[str, Logins]) -> None:
        """`logins`: by the listeners whose clients log in."""
        self._broker = broker
        self._logins = logins

    async def answer(self, identity: Identity) -> VisibleNames:
        logins = self._logins.get(identity.listener)
        if logins is None or not logins.is_current(
            identity.user, identity.revision, identity.token
        ):
            return VisibleNames(is_over=True)
        authorizer = self._broker.authorizer
        if not authorizer.is_enabled or authorizer.is_super_user(identity):
            return VisibleNames(everything=True, cluster=True)
        groups = list(self._broker.group_coordinator.groups.by_id)
        topics = [topic.name for topic in self._broker.topics.all()]
        sees_cluster = authorizer.allows(
            identity, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME
        )
        if not sees_cluster:  # as in ListGroups
            groups = await self._among(identity, ResourceType.GROUP, groups)
        return VisibleNames(
            cluster=sees_cluster,
            topics=await self._among(identity, ResourceType.TOPIC, topics),
            groups=groups,
        )

    async def _among(
        self, identity: Identity, resource: ResourceType, names: Iterable[str]
    ) -> list[str]:
        allows = self._broker.authorizer.allows
        return [
            name
            async for name in in_slices(names)
            if allows(identity, Operation.DESCRIBE, resource, name)
        ]
