"""The user that asks about the cluster: metadata, descriptions, lists, offsets."""

from __future__ import annotations

import itertools

from moldau.broker.wire.messages.describe_cluster import DescribeClusterRequest
from moldau.broker.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.broker.wire.messages.describe_groups import DescribeGroupsRequest
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.list_groups import ListGroupsRequest
from moldau.broker.wire.messages.metadata import MetadataRequest
from moldau.loadtest.users.client.connection import top_level_error
from moldau.loadtest.users.kafka_user import KafkaUser
from moldau.ops.client import LATEST

TOPIC_RESOURCE = 2


class AdminUser(KafkaUser):
    weight = 1

    def on_start(self) -> None:
        super().on_start()
        options = self.options
        group = f"{options.group}-group-{self.number % options.groups}"
        topic = DescribeConfigsResource(TOPIC_RESOURCE, options.topic, None)
        self.requests = itertools.cycle(
            [
                (MetadataRequest(None, False), None),
                (DescribeClusterRequest(), top_level_error),
                (FindCoordinatorRequest(group), top_level_error),
                (ListGroupsRequest(), top_level_error),
                (DescribeConfigsRequest([topic]), lambda answer: int(answer.results[0].error_code)),
                (DescribeGroupsRequest([group]), None),
                (None, None),  # ListOffsets, to the leader
            ]
        )

    def step(self) -> None:
        due = self.schedule.wait()
        request, error_of = next(self.requests)
        if request is None:
            self.session.offset(self.options.topic, self.next_partition(), LATEST, due)
        elif isinstance(request, DescribeGroupsRequest):
            (group,) = request.groups
            connection = self.session.coordinator(group, "describe")
            connection.call(request, lambda answer: int(answer.groups[0].error_code), due=due)
        else:
            self.session.ask(request, error_of, due)
