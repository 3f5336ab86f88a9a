"""ACLs of a mirror: those that the source has and Moldau has not are made, none is removed.

Users are not copied: Kafka does not give their keys out.
"""

from __future__ import annotations

import re

import msgspec

from moldau.broker.errors import ErrorCode
from moldau.broker.security.acl import Acl, AclFilter
from moldau.broker.security.resources import Operation, PatternType, Permission, ResourceType
from moldau.broker.wire.messages.describe_acls import DescribeAclsRequest
from moldau.ops.client import ClientError, Cluster, refusal
from moldau.ops.mirror.plan import missing_acls
from moldau.ops.operations.acls import create_acls, find_acls

_UNABLE = (
    ErrorCode.SECURITY_DISABLED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
)


class Acls:
    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self.made: list[Acl] = []
        self.unknown = 0  # of the source, about things that Moldau does not have
        self.why: str | None = None  # none are copied

    def sync(self, source: Cluster, target: Cluster) -> None:
        """Raises ClientError when a cluster cannot be reached."""
        try:
            there = self._of_source(source)
            missing = missing_acls(there, set(find_acls(target)) if there else (), self._pattern)
            if missing:
                create_acls(target, missing)
                self.made += missing
            self.why = None
        except ClientError as fault:
            if fault.code not in _UNABLE:
                raise
            self.why = str(fault)

    def _of_source(self, source: Cluster) -> list[Acl]:
        answer = source.call(DescribeAclsRequest(*msgspec.structs.astuple(AclFilter())))
        if answer.error_code:
            raise refusal("ACLs of the source", answer.error_code, answer.error_message)
        found, self.unknown = [], 0
        for resource in answer.resources:
            for one in resource.acls:
                try:
                    acl = Acl(
                        ResourceType(resource.resource_type),
                        resource.resource_name,
                        PatternType(resource.pattern_type),
                        one.principal,
                        one.host,
                        Operation(one.operation),
                        Permission(one.permission_type),
                    )
                except ValueError:
                    self.unknown += 1
                else:
                    found.append(acl)
        return found
