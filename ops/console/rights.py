"""A denial in words: which right was missing, and how to add it. Pure.

Kafka's protocol says on what something was denied, never which operation would have been needed:
that follows from the request (broker/security/README.md has the table).
"""

from __future__ import annotations

from shlex import quote

from moldau.broker.errors import ErrorCode
from moldau.broker.security.resources import ResourceType
from moldau.ops.client import Denied

_TOPIC, _GROUP, _CLUSTER, _TRANSACTION = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)
_RESOURCES = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: _TOPIC,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: _GROUP,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: _CLUSTER,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _TRANSACTION,
}
# By request and resource type.
OPERATIONS = {
    ("AddPartitionsToTxn", _TRANSACTION): "WRITE",
    ("AlterClientQuotas", _CLUSTER): "ALTER_CONFIGS",
    ("AlterConfigs", _TOPIC): "ALTER_CONFIGS",
    ("AlterConfigs", _CLUSTER): "ALTER_CONFIGS",
    ("AlterUserScramCredentials", _CLUSTER): "ALTER",
    ("ConsumerGroupDescribe", _GROUP): "DESCRIBE",
    ("CreateAcls", _CLUSTER): "ALTER",
    ("CreatePartitions", _TOPIC): "ALTER",
    ("CreateTopics", _TOPIC): "CREATE",
    ("DeleteAcls", _CLUSTER): "ALTER",
    ("DeleteGroups", _GROUP): "DELETE",
    ("DeleteRecords", _TOPIC): "DELETE",
    ("DeleteTopics", _TOPIC): "DELETE",
    ("DescribeAcls", _CLUSTER): "DESCRIBE",
    ("DescribeClientQuotas", _CLUSTER): "DESCRIBE_CONFIGS",
    ("DescribeConfigs", _CLUSTER): "DESCRIBE_CONFIGS",
    ("DescribeConfigs", _GROUP): "DESCRIBE_CONFIGS",
    ("DescribeConfigs", _TOPIC): "DESCRIBE_CONFIGS",
    ("DescribeGroups", _GROUP): "DESCRIBE",
    ("DescribeLogDirs", _CLUSTER): "DESCRIBE",
    ("DescribeProducers", _TOPIC): "READ",
    ("DescribeTopicPartitions", _TOPIC): "DESCRIBE",
    ("DescribeTransactions", _TRANSACTION): "DESCRIBE",
    ("DescribeUserScramCredentials", _CLUSTER): "DESCRIBE",
    ("Fetch", _TOPIC): "READ",
    ("FindCoordinator", _GROUP): "DESCRIBE",
    ("FindCoordinator", _TRANSACTION): "DESCRIBE",
    ("IncrementalAlterConfigs", _CLUSTER): "ALTER_CONFIGS",
    ("IncrementalAlterConfigs", _TOPIC): "ALTER_CONFIGS",
    ("InitProducerId", _CLUSTER): "IDEMPOTENT_WRITE",
    ("InitProducerId", _TRANSACTION): "WRITE",
    ("ListConfigResources", _CLUSTER): "DESCRIBE_CONFIGS",
    ("ListOffsets", _TOPIC): "DESCRIBE",
    ("Metadata", _TOPIC): "DESCRIBE",
    ("OffsetCommit", _GROUP): "READ",
    ("OffsetCommit", _TOPIC): "READ",
    ("OffsetDelete", _GROUP): "DELETE",
    ("OffsetDelete", _TOPIC): "READ",
    ("OffsetFetch", _GROUP): "DESCRIBE",
    ("OffsetFetch", _TOPIC): "DESCRIBE",
    ("OffsetForLeaderEpoch", _TOPIC): "DESCRIBE",
    ("Produce", _TOPIC): "WRITE",
    ("Produce", _TRANSACTION): "WRITE",
    ("WriteTxnMarkers", _CLUSTER): "ALTER",
}
# What is said in place of the broker's own words, which name no right.
_PLAIN = "authorization failed"
_WORDS = {_TOPIC: "topic", _GROUP: "group", _TRANSACTION: "transactional id"}


def denial_text(user: str, api: str, denied: Denied) -> str:
    """`api`: the request that was denied."""
    resource = _RESOURCES[ErrorCode(denied.code)]
    operation = OPERATIONS.get((api, resource))
    if denied.message and _PLAIN not in denied.message.lower():
        return f"{denied.subject}: {denied.message.rstrip('.')}."
    if operation is None:
        return f"{denied.subject}: no ACL allows {user} {api}."
    word = _WORDS.get(resource, "")
    _, is_named, name = denied.subject.partition(f"{word} ")
    if resource is _CLUSTER:
        where, option = "the cluster", "--cluster"
    elif is_named and denied.subject.startswith(word):
        where, option = f"{word} {name}", f"--{word.replace(' ', '-')} {quote(name)}"
    else:
        where, option = f"the {word} ({denied.subject})", f"--{word.replace(' ', '-')} NAME"
    return (
        f"{user} needs {operation} on {where}. An administrator can allow it: "
        f"moldau acls add --user {quote(user)} --operation {operation.lower().replace('_', '-')} "
        f"{option}"
    )
