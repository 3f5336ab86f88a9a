"""Topics as groups see them, out of what the worker knows."""

from __future__ import annotations

from moldau.broker.group.topics import TopicFacts, TopicsSeen
from moldau.broker.topics.topics import Topic, Topics


def topics_seen(topics: Topics) -> TopicsSeen:
    def by_name(name: str) -> TopicFacts | None:
        return _facts(topics.get(name))

    def by_id(topic_id: bytes) -> TopicFacts | None:
        return _facts(topics.by_id(topic_id))

    return TopicsSeen(by_name, by_id, lambda: [topic.name for topic in topics.all()])


def _facts(topic: Topic | None) -> TopicFacts | None:
    return None if topic is None else TopicFacts(topic.name, topic.topic_id, topic.partitions)
