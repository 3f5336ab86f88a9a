"""Settings of the broker that tools look at."""

from __future__ import annotations

from collections.abc import Sequence

from moldau.broker.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.ops.client import Cluster, refusal

BROKER = 4  # the resource type of DescribeConfigs


def broker_configs(cluster: Cluster, names: Sequence[str]) -> dict[str, str]:
    """By name; empty where nothing is set. Raises ClientError."""
    node = cluster.nodes()[0]
    wanted = DescribeConfigsResource(BROKER, str(node.node_id), list(names))
    (answer,) = cluster.call(DescribeConfigsRequest([wanted]), node).results
    if answer.error_code:
        raise refusal(f"broker {node.node_id}", answer.error_code, answer.error_message)
    found = {one.name: one.value or "" for one in answer.configs}
    return {name: found.get(name, "") for name in names}
