"""The topics that a worker knows, and every change to them.

Reads are answered from memory. A name that is not known here is looked up in the store
before a client gets UNKNOWN_TOPIC_OR_PARTITION: another worker may have created it a moment ago.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.settings.kafka import (
    BrokerConfig,
    InvalidConfig,
    InvalidConfigRequest,
    TopicConfig,
    topic_config,
    validate_topic,
)
from moldau.broker.store import keys
from moldau.broker.store.native import NativeStreams
from moldau.broker.store.stream_ids import parse, too_large
from moldau.broker.store.streams import Streams
from moldau.broker.store.topics import Change, TopicRecord, TopicStore
from moldau.broker.store_loss.log_integrity import LogIntegrity
from moldau.broker.topics.errors import MAX_PARTITIONS, already_exists, not_more_partitions
from moldau.broker.wire.schema import NO_UUID

MAX_NAME = 249
MIN_CHOSEN_BITS, MAX_CHOSEN_BITS = 10, 20  # of a native topic's sequences
GROUP_EVENTS = "__moldau_group_events"
AUDIT = "__moldau_audit"
# Written by the broker only, whatever a client is allowed to do.
INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", GROUP_EVENTS, AUDIT})
# Of these, what Kafka keeps in topics and Moldau in the store: they never exist.
NEVER_TOPICS = INTERNAL - {GROUP_EVENTS, AUDIT}
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class Topic:
    """A topic as this worker serves it."""

    __slots__ = ("config", "record")

    def __init__(self, record: TopicRecord, config: TopicConfig) -> None:
        self.record = record
        self.config = config

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def topic_id(self) -> bytes:
        return self.record.topic_id

    @property
    def partitions(self) -> int:
        return self.record.partitions

    @property
    def native(self) -> bool:
        return self.config.native

    def key(self, partition: int) -> bytes:
        """The key of the partition's stream."""
        if self.config.native:
            return keys.native_key(self.config.native_key, self.record.name, partition)
        return keys.stream(self.record.name, self.record.incarnation, partition)

    def base(self, partition: int) -> bytes:
        """What the names of the keys beside the stream are made of."""
        log = keys.stream(self.record.name, self.record.incarnation, partition)
        return keys.beside(self.key(partition), log) if self.config.native else log


def _check_native_key(key: bytes) -> None:
    where = key.decode("utf-8", "replace")
    if key.removeprefix(b"{").startswith(keys.OWN) or b"}:" + keys.OWN in key:
        text = f"keys under {keys.OWN.decode()} are Moldau's own: {where}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, text)
    if keys.hash_tag(key) is None:
        text = (
            f"{where} cannot be the key of a topic: what is kept beside the stream is named "
            "{<hash tag of the stream>}:…, and a closing brace outside of a hash tag makes that "
            "impossible"
        )
        raise KafkaError(ErrorCode.INVALID_CONFIG, text)


def check_name(name: str) -> None:
    if not name or name in (".", "..") or len(name) > MAX_NAME or not _LEGAL_NAME.fullmatch(name):
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{name[:MAX_NAME]!r} is not a topic name: 1 to {MAX_NAME} of a-z A-Z 0-9 . _ -",
        )


class Topics:
    def __init__(
        self,
        store: TopicStore,
        streams: Streams,
        native: NativeStreams,
        broker: BrokerConfig,
        integrity: LogIntegrity,
    ) -> None:
        self._integrity = integrity
        self._store = store
        self._streams = streams
        self._native = native
        self.broker = broker
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self.on_removed: list[Callable[[Topic], None]] = []
        # Called with the name of a topic that was made, removed, or has more partitions.
        self.on_changed: Callable[[str], None] = lambda name: None

    # --- looking up ---

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        return self._by_id.get(topic_id)

    def id_of(self, name: str) -> bytes | None:
        topic = self._by_name.get(name)
        return None if topic is None else topic.topic_id

    def known(self, name: str, topic_id: bytes) -> Topic | None:
        """The topic with this id, or this name if the request has no id; None: unknown here."""
        return self._by_name.get(name) if topic_id == NO_UUID else self._by_id.get(topic_id)

    def all(self) -> list[Topic]:
        return list(self._by_name.values())

    async def find(self, name: str) -> Topic | None:
        """The topic, from the store when it is not known here."""
        return self._by_name.get(name) or await self.refresh(name)

    async def find_id(self, topic_id: bytes) -> Topic | None:
        if topic_id not in self._by_id:
            await self.load()
        return self._by_id.get(topic_id)

    async def find_by(self, name: str, topic_id: bytes) -> Topic | None:
        """`known`, from the store when it is not known here."""
        return await (self.find(name) if topic_id == NO_UUID else self.find_id(topic_id))

    async def find_each(self, wanted: Sequence[tuple[str, bytes]]) -> list[Topic | None]:
        """`find_by` for each name and id of a request, which may have any number of them: the store
        is asked once for all ids, and a few times for all names."""
        unknown = {name for name, topic_id in wanted if self.known(name, topic_id) is None}
        ids = [topic_id for _, topic_id in wanted if topic_id != NO_UUID]
        if any(topic_id not in self._by_id for topic_id in ids):
            await self.load()
        elif unknown:
            await self.refresh_each(unknown)
        return [self.known(name, topic_id) for name, topic_id in wanted]

    # --- keeping in step ---

    async def load(self) -> None:
        """Read all topics: at start, and when changes may have been missed."""
        records = {record.name: record for record in await self._store.all_topics()}
        for name in self._by_name.keys() - records.keys():
            self._remember(name, None)
        for name, record in records.items():
            self._remember(name, record)

    async def reseed(self) -> None:
        """The store is not the one we know. Followed by `load`."""
        await self._store.reseed()

    async def refresh(self, name: str) -> Topic | None:
        self._remember(name, await self._store.topic(name))
        return self._by_name.get(name)

    async def refresh_each(self, names: Iterable[str]) -> None:
        for name, record in (await self._store.topics(list(names))).items():
            self._remember(name, record)

    def use_broker_config(self, broker: BrokerConfig) -> None:
        self.broker = broker
        for topic in self._by_name.values():
            topic.config = topic_config(topic.record.configs, broker)

    def _remember(self, name: str, record: TopicRecord | None) -> None:
        if record is not None and record.deleting:
            record = None
        known = self._by_name.get(name)
        if known is not None and (record is None or record.topic_id != known.topic_id):
            del self._by_name[name], self._by_id[known.topic_id]
            for removed in self.on_removed:
                removed(known)
            self.on_changed(name)
            known = None
        if record is None or (known is not None and known.record == record):
            return
        config = topic_config(record.configs, self.broker)
        if known is None:
            known = Topic(record, config)
            self._by_name[name] = self._by_id[record.topic_id] = known
            self.on_changed(name)
        else:
            has_grown = record.partitions != known.partitions
            known.record, known.config = record, config
            if has_grown:
                self.on_changed(name)

    # --- changing ---

    async def create(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str | None],
        *,
        validate_only: bool = False,
    ) -> TopicRecord:
        """Create a topic; raises KafkaError when it exists or is not allowed."""
        check_name(name)
        if partitions == -1:
            partitions = self.broker.get_int("num.partitions")
        if not 0 < partitions <= MAX_PARTITIONS:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"{partitions} partitions: a topic can have 1 to {MAX_PARTITIONS}",
            )
        chosen = self._checked(configs)
        existing = await self._store.topic(name)
        if existing is not None and existing.deleting:
            await self._finish_deletion(existing)
            existing = None
        self._check_collision(name)
        if existing is not None:
            raise already_exists(name)
        await self._settle_native(name, partitions, chosen)
        # A topic that is known here and not in the store: it is being deleted, or the store lost
        # it. Other workers may still use its logs.
        unused = name not in self._by_name
        record = TopicRecord(
            name=name,
            topic_id=uuid.uuid4().bytes,
            partitions=partitions,
            incarnation=await self._store.new_incarnation(name, unused=unused),
            created_ms=time.time_ns() // 1_000_000,
            configs=chosen,
        )
        if validate_only:
            return record
        # Streams first: a topic that is visible can be appended to.
        await self._create_streams(record, range(partitions))
        if not await self._store.add(record):
            await self._drop_surplus(record)
            raise already_exists(name)
        self._remember(name, record)
        await self._store.announce(Change("topic", name))
        return record

    def _check_collision(self, name: str) -> None:
        """Kafka's rule: names that differ only in . and _ would share metric names."""
        if "." not in name and "_" not in name:
            return
        folded = name.replace(".", "_")
        for other in self._by_name:
            if other != name and other.replace(".", "_") == folded:
                raise KafkaError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name!r} collides with topic {other!r}"
                )

    def _checked(
        self, configs: Mapping[str, str | None], existing: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        try:
            validate_topic(configs, self.broker, existing)
        except InvalidConfig as refusal:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(refusal)) from None
        return {name: value for name, value in configs.items() if value is not None}

    async def _settle_native(self, name: str, partitions: int, chosen: dict[str, str]) -> None:
        """Check a native topic's settings; choose its sequence bits by its streams if asked to."""
        config = topic_config(chosen, self.broker)
        if not config.native:
            return
        if config.native_key and partitions > 1 and "{partition}" not in config.native_key:
            text = f"{partitions} partitions: moldau.native.key needs {{partition}} in it"
            raise KafkaError(ErrorCode.INVALID_CONFIG, text)
        pattern = config.native_key
        keys_used = [keys.native_key(pattern, name, number) for number in range(partitions)]
        for key in keys_used if config.native_key else ():
            _check_native_key(key)
        if config.native_bits == 0:
            largest = 0
            for key in keys_used:
                found = await self._native.survey(key)
                if found is None:
                    text = f"there is no stream {key.decode('utf-8', 'replace')} to look at"
                    raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, text)
                largest = max(largest, found)
            bits = min(max(largest.bit_length(), MIN_CHOSEN_BITS), MAX_CHOSEN_BITS)
            chosen["moldau.native.sequence.bits"] = str(bits)
        bits = int(chosen.get("moldau.native.sequence.bits", config.native_bits))
        for key in keys_used:
            last = parse(await self._native.last_id(key))
            if too_large(last, bits):
                where = key.decode("utf-8", "replace")
                text = f"{where}: id {last.ms}-{last.seq} is too large for an offset of {bits} bits"
                raise KafkaError(ErrorCode.INVALID_CONFIG, text)

    async def _create_streams(self, record: TopicRecord, partitions: Iterable[int]) -> None:
        topic = Topic(record, topic_config(record.configs, self.broker))
        for partition in partitions:
            if topic.native:
                await self._native.create(topic.key(partition), topic.base(partition))
            else:
                created = self._integrity.of_new_log(record.name, partition)
                await self._streams.create(topic.key(partition), *created)

    async def _remove_stream(self, record: TopicRecord, partition: int) -> None:
        topic = Topic(record, topic_config(record.configs, self.broker))
        if topic.native:
            # A stream with a key of its own belongs to a Redis application: it stays.
            stream = None if topic.config.native_key else topic.key(partition)
            await self._native.remove(stream, topic.base(partition))
        else:
            await self._streams.remove(topic.key(partition))

    async def _drop_surplus(self, loser: TopicRecord) -> None:
        """Another worker created the same topic at the same time, perhaps with fewer partitions."""
        winner = await self._store.topic(loser.name)
        kept = winner.partitions if winner and winner.incarnation == loser.incarnation else 0
        for partition in range(kept, loser.partitions):
            await self._remove_stream(loser, partition)

    async def delete(self, name: str) -> TopicRecord:
        record = await self._store.topic(name)
        while record is not None and not record.deleting:
            marked = _with(record, deleting=True)
            if await self._store.replace(record, marked):
                record = marked
                break
            record = await self._store.topic(name)
        if record is None:
            self._remember(name, None)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        self._remember(name, None)
        await self._store.announce(Change("topic", name))
        await self._finish_deletion(record)
        return record

    async def _finish_deletion(self, record: TopicRecord) -> None:
        for partition in range(record.partitions):
            await self._remove_stream(record, partition)
        await self._store.remove(record)

    async def finish_deletions(self) -> None:
        """Deletions that a crash cut short."""
        for record in await self._store.all_topics():
            if record.deleting:
                await self._finish_deletion(record)

    async def add_partitions(self, name: str, total: int, *, validate_only: bool) -> None:
        while True:
            record = await self._known(name)
            if not record.partitions < total <= MAX_PARTITIONS:
                raise not_more_partitions(name, record.partitions, total)
            if validate_only:
                return
            await self._create_streams(record, range(record.partitions, total))
            if await self._replace(record, _with(record, partitions=total)):
                return

    async def set_configs(
        self,
        name: str,
        change: Callable[[dict[str, str]], Mapping[str, str | None]],
        *,
        validate_only: bool,
    ) -> None:
        """Replace a topic's configuration by what `change` makes of it."""
        while True:
            record = await self._known(name)
            try:
                wanted = change(dict(record.configs))
            except InvalidConfigRequest as refusal:
                raise KafkaError(ErrorCode.INVALID_REQUEST, str(refusal)) from None
            except InvalidConfig as refusal:
                raise KafkaError(ErrorCode.INVALID_CONFIG, str(refusal)) from None
            chosen = self._checked(wanted, record.configs)
            if validate_only or await self._replace(record, _with(record, configs=chosen)):
                return

    async def _known(self, name: str) -> TopicRecord:
        record = await self._store.topic(name)
        if record is None or record.deleting:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return record

    async def _replace(self, old: TopicRecord, new: TopicRecord) -> bool:
        if not await self._store.replace(old, new):
            return False
        self._remember(new.name, new)
        await self._store.announce(Change("topic", new.name))
        return True


def _with(record: TopicRecord, **changes: object) -> TopicRecord:
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    return TopicRecord(**{**fields, **changes})
