"""The subscriptions of all members, counted: names, patterns, and the topics that they match.

The topic hash sums a hash of the name, id and number of partitions of every subscribed topic. It is
stored, so that loading the group can tell whether anything has changed in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b

from moldau.broker.group.modern.members import Member
from moldau.broker.group.topics import TopicFacts, TopicLookup

_MASK = (1 << 63) - 1


def _hash(topic: TopicFacts) -> int:
    data = b"%b\0%b\0%d" % (topic.name.encode(), topic.topic_id, topic.partitions)
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big") & _MASK


class Pattern:
    """A pattern in use."""

    __slots__ = ("members", "topics")

    def __init__(self, topics: frozenset[str] | None = None) -> None:
        self.topics = topics
        """None while it is not resolved: it matches no topics yet."""
        self.members = 0


class Subscriptions:
    def __init__(self, topics: TopicLookup) -> None:
        self._topics = topics
        self._names: Counter[str] = Counter()
        self._seen: dict[str, int] = {}  # the hashes of subscribed topics that exist
        self._shared: dict[frozenset[str], frozenset[str]] = {}
        self.patterns: dict[str, Pattern] = {}
        self.topic_hash = 0

    def shared(self, names: Iterable[str]) -> frozenset[str]:
        """Return one object for equal subscriptions: a thousand members usually have the same."""
        wanted = frozenset(names)
        if len(self._shared) > 256:
            self._shared.clear()
        return self._shared.setdefault(wanted, wanted)

    # --- members ---

    def add(self, member: Member) -> None:
        names = self._names
        fresh = [name for name in member.names if not names[name]]
        names.update(member.names)
        if member.pattern:
            pattern = self.patterns.setdefault(member.pattern, Pattern())
            pattern.members += 1
            if pattern.members == 1 and pattern.topics:
                fresh += pattern.topics
        self.rehash(fresh)

    def remove(self, member: Member) -> None:
        names = self._names
        stale = []
        for name in member.names:
            names[name] -= 1
            if not names[name]:
                del names[name]
                stale.append(name)
        if member.pattern:
            pattern = self.patterns[member.pattern]
            pattern.members -= 1
            if not pattern.members:
                del self.patterns[member.pattern]
                stale += pattern.topics or ()
        self.rehash(stale)

    def topics_of(self, member: Member) -> frozenset[str]:
        """Return all names, including those of topics that do not exist."""
        topics = self.patterns[member.pattern].topics if member.pattern else None
        return member.names | topics if topics else member.names

    def has(self, member: Member, topic_id: bytes) -> bool:
        """Check whether the member subscribes to the topic with this id."""
        topic = self._topics.by_id(topic_id)
        if topic is None:
            return False
        if topic.name in member.names:
            return True
        topics = self.patterns[member.pattern].topics if member.pattern else None
        return topics is not None and topic.name in topics

    # --- all together ---

    def all(self) -> frozenset[str]:
        found = set(self._names)
        for pattern in self.patterns.values():
            found.update(pattern.topics or ())
        return frozenset(found)

    def __contains__(self, name: str) -> bool:
        if self._names.get(name):
            return True
        return any(name in (pattern.topics or ()) for pattern in self.patterns.values())

    def facts(self) -> list[TopicFacts]:
        """Return the subscribed topics that exist, in order."""
        found = (self._topics.by_name(name) for name in sorted(self._seen))
        return [topic for topic in found if topic is not None]

    def rehash(self, names: Iterable[str]) -> bool:
        """Look at these topics again. Returns True if anything about them has changed."""
        before = self.topic_hash
        for name in names:
            old = self._seen.pop(name, 0)
            topic = self._topics.by_name(name) if name in self else None
            new = 0 if topic is None else _hash(topic)
            if topic is not None:
                self._seen[name] = new
            self.topic_hash = (self.topic_hash + new - old) & _MASK
        return self.topic_hash != before

    def match(self, pattern: str, topics: frozenset[str], *, of_all: bool) -> bool:
        """Set the topics that a pattern matches. Returns True if that changes anything."""
        known = self.patterns.get(pattern)
        if known is None:
            return False  # no member uses it any longer
        before = known.topics
        known.topics = topics if of_all or before is None else before | topics
        if known.topics == before:
            known.topics = before
            return False
        self.rehash(known.topics ^ (before or frozenset()))
        return bool(known.topics) or bool(before)
