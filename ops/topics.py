"""`moldau topics`: list, describe, create, delete and alter topics of a running broker."""

from __future__ import annotations

import argparse
import base64
from typing import Any

from broker.configs.catalogue import ConfigSource
from broker.errors import ErrorCode
from broker.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from broker.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from broker.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from broker.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from broker.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from broker.wire.messages.metadata import MetadataResponseTopic
from ops.client import EARLIEST, LATEST, ClientError, Cluster, Place, nodes_of, refusal
from ops.command_line import (
    add_actions,
    complain,
    confirm,
    print_facts,
    print_json,
    print_table,
    run_action,
    size_text,
)

DESCRIPTION = "List, describe, create, delete and alter the topics of a running broker."

EXAMPLES = """\
examples:
  moldau topics list
  moldau topics create orders --partitions 6 --config retention.ms=86400000
  moldau topics describe orders
  moldau topics alter orders --partitions 12 --config cleanup.policy=compact
  moldau topics delete orders
  moldau topics ACTION --help       all options of an action
"""

TOPIC_RESOURCE = 2
SET, DELETE = 0, 1
BROKER_DEFAULT = -1  # of partitions and replication factor
TIMEOUT_MS = 30_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = add_actions(parser, DESCRIPTION, EXAMPLES)
    add(
        "list",
        "show the topics there are",
        "examples:\n  moldau topics list\n  moldau topics list --json | jq -r '.topics[].name'\n",
        _list,
    )

    describe = add(
        "describe",
        "show partitions, leaders, offsets, sizes and the configuration that is not default",
        "examples:\n  moldau topics describe orders\n  moldau topics describe orders --json\n\n"
        "records are end minus start offset: a compacted log holds fewer\n",
        _describe,
    )
    describe.add_argument("topics", nargs="+", metavar="TOPIC")

    create = add(
        "create",
        "create topics",
        "examples:\n  moldau topics create orders --partitions 6\n"
        "  moldau topics create prices --config cleanup.policy=compact --if-not-exists\n"
        "  moldau topics create orders --partitions 6 --dry-run\n",
        _create,
    )
    create.add_argument("topics", nargs="+", metavar="TOPIC")
    create.add_argument(
        "--partitions", type=_positive, metavar="N", help="how many (num.partitions of the broker)"
    )
    create.add_argument(
        "--config", type=_setting, action="append", default=[], metavar="KEY=VALUE",
        help="a topic configuration; may be repeated",
    )  # fmt: skip
    create.add_argument("--if-not-exists", action="store_true", help="one that exists is fine")
    create.add_argument("--dry-run", action="store_true", help="only ask whether it could be done")

    delete = add(
        "delete",
        "delete topics and all their records",
        "examples:\n  moldau topics delete orders\n  moldau topics delete orders prices --yes\n",
        _delete,
    )
    delete.add_argument("topics", nargs="+", metavar="TOPIC")
    delete.add_argument("--yes", action="store_true", help="do not ask for confirmation")

    alter = add(
        "alter",
        "change a topic's configuration or give it more partitions",
        "examples:\n  moldau topics alter orders --config retention.ms=3600000\n"
        "  moldau topics alter orders --delete-config retention.ms\n"
        "  moldau topics alter orders --partitions 12\n\n"
        "all changes are checked before the first is made; records of a key may go to another\n"
        "partition when there are more of them\n",
        _alter,
    )
    alter.add_argument("topic", metavar="TOPIC")
    alter.add_argument(
        "--config", type=_setting, action="append", default=[], metavar="KEY=VALUE",
        help="set this; may be repeated",
    )  # fmt: skip
    alter.add_argument(
        "--delete-config", action="append", default=[], metavar="KEY",
        help="back to the broker's default; may be repeated",
    )  # fmt: skip
    alter.add_argument("--partitions", type=_positive, metavar="N", help="how many in the end")


def run(arguments: argparse.Namespace) -> int:
    return run_action(arguments)


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 0 < number < 1 << 31:
        raise argparse.ArgumentTypeError(f"want a number from 1 on, got {text!r}")
    return number


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key.strip() or not equals:
        raise argparse.ArgumentTypeError(f"want KEY=VALUE, got {text!r}")
    return key.strip(), value


def _list(cluster: Cluster, arguments: argparse.Namespace) -> int:
    topics = [
        {
            "name": topic.name,
            "id": _id_text(topic.topic_id),
            "partitions": len(topic.partitions),
            "internal": topic.is_internal,
        }
        for topic in sorted(cluster.metadata(None).topics, key=lambda topic: topic.name or "")
    ]
    if arguments.json:
        print_json({"topics": topics})
    else:
        rows = [(topic["name"], topic["partitions"], topic["id"]) for topic in topics]
        print_table(("topic", "partitions", "id"), rows)
    return 0


def _id_text(topic_id: bytes) -> str:
    """As Kafka's tools write it."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


# --- describe ---


def _describe(cluster: Cluster, arguments: argparse.Namespace) -> int:
    names = list(dict.fromkeys(arguments.topics))
    found = cluster.topics(names)
    sizes = _sizes(cluster, found)
    described = [_describe_one(cluster, topic, sizes) for topic in found.values()]
    if arguments.json:
        print_json({"topics": described})
    else:
        for number, topic in enumerate(described):
            if number:
                print()
            _print_described(topic)
    return _missing(names, found)


def _missing(names: list[str], found: dict[str, MetadataResponseTopic]) -> int:
    missing = [name for name in names if name not in found]
    for name in missing:
        complain(refusal(f"topic {name}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    return 1 if missing else 0


def _sizes(cluster: Cluster, topics: dict[str, MetadataResponseTopic]) -> dict[Place, int]:
    """Bytes in the store: every broker answers for what it leads."""
    wanted = [
        DescribableLogDirTopic(name, [one.partition_index for one in topic.partitions])
        for name, topic in topics.items()
    ]
    sizes: dict[Place, int] = {}
    for node in cluster.nodes() if wanted else ():
        answer = cluster.call(DescribeLogDirsRequest(wanted), node)
        for result in answer.results:
            if answer.error_code or result.error_code:
                subject = f"sizes at broker {node.node_id}"
                raise refusal(subject, answer.error_code or result.error_code)
            for topic in result.topics:
                for one in topic.partitions:
                    place = Place(topic.name, one.partition_index)
                    sizes[place] = sizes.get(place, 0) + one.partition_size
    return sizes


def _describe_one(
    cluster: Cluster, topic: MetadataResponseTopic, sizes: dict[Place, int]
) -> dict[str, Any]:
    name = topic.name or ""
    nodes = {node.node_id: node for node in nodes_of(cluster.metadata())}
    places = [Place(name, one.partition_index) for one in topic.partitions]
    starts = cluster.list_offsets(dict.fromkeys(places, EARLIEST))
    ends = cluster.list_offsets(dict.fromkeys(places, LATEST))
    partitions = []
    for one in sorted(topic.partitions, key=lambda one: one.partition_index):
        place = Place(name, one.partition_index)
        if place not in starts or place not in ends:
            raise ClientError(f"topic {name}: it was deleted while it was looked at")
        leader = nodes.get(one.leader_id)
        partitions.append(
            {
                "partition": one.partition_index,
                "leader": one.leader_id,
                "leader_address": None if leader is None else leader.address,
                "start_offset": starts[place],
                "end_offset": ends[place],
                "records": ends[place] - starts[place],
                "size_bytes": sizes.get(place, 0),
            }
        )
    return {
        "name": name,
        "id": _id_text(topic.topic_id),
        "internal": topic.is_internal,
        "records": sum(one["records"] for one in partitions),
        "size_bytes": sum(one["size_bytes"] for one in partitions),
        "partitions": partitions,
        "configs": [one for one in _configs(cluster, name) if one["source"] != "default"],
    }


def _configs(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    resource = DescribeConfigsResource(TOPIC_RESOURCE, name, None)
    (result,) = cluster.call(DescribeConfigsRequest([resource])).results
    if result.error_code:
        raise refusal(f"topic {name}", result.error_code, result.error_message)
    return [
        {
            "name": entry.name,
            "value": None if entry.is_sensitive else entry.value,
            "source": _source_text(entry.config_source),
        }
        for entry in sorted(result.configs, key=lambda entry: entry.name)
    ]


def _source_text(source: int) -> str:
    if source == ConfigSource.DEFAULT_CONFIG:
        return "default"
    return "topic" if source == ConfigSource.DYNAMIC_TOPIC_CONFIG else "broker"


def _print_described(topic: dict[str, Any]) -> None:
    print_facts(
        {
            "topic": topic["name"],
            "id": topic["id"],
            "partitions": len(topic["partitions"]),
            "records": topic["records"],
            "size": size_text(topic["size_bytes"]),
        }
    )
    print()
    print_table(
        ("partition", "leader", "address", "start", "end", "records", "size"),
        [
            (
                one["partition"],
                one["leader"],
                one["leader_address"],
                one["start_offset"],
                one["end_offset"],
                one["records"],
                size_text(one["size_bytes"]),
            )
            for one in topic["partitions"]
        ],
    )
    if topic["configs"]:
        print()
        rows = [(one["name"], one["value"], one["source"]) for one in topic["configs"]]
        print_table(("config", "value", "set by"), rows)


# --- create, delete, alter ---


def _create(cluster: Cluster, arguments: argparse.Namespace) -> int:
    configs = [CreatableTopicConfig(key, value) for key, value in arguments.config]
    partitions = arguments.partitions or BROKER_DEFAULT
    names = list(dict.fromkeys(arguments.topics))
    wanted = [CreatableTopic(name, partitions, BROKER_DEFAULT, [], configs) for name in names]
    request = CreateTopicsRequest(wanted, TIMEOUT_MS, arguments.dry_run)
    results, failed = [], False
    for answer in cluster.call(request).topics:
        exists = answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        if answer.error_code and not (exists and arguments.if_not_exists):
            failed = True
            complain(refusal(f"topic {answer.name}", answer.error_code, answer.error_message))
            continue
        results.append(
            {
                "name": answer.name,
                "id": None if exists or arguments.dry_run else _id_text(answer.topic_id),
                "partitions": None if exists else answer.num_partitions,
                "created": not exists and not arguments.dry_run,
            }
        )
    if arguments.json:
        print_json({"topics": results})
    else:
        for result in results:
            print(_created_text(result, arguments.dry_run))
    return 1 if failed else 0


def _created_text(result: dict[str, Any], dry_run: bool) -> str:
    if result["partitions"] is None:
        return f"{result['name']} exists already"
    verb = "could be created" if dry_run else "created"
    return f"{result['name']} {verb}, partitions: {result['partitions']}"


def _delete(cluster: Cluster, arguments: argparse.Namespace) -> int:
    names = list(dict.fromkeys(arguments.topics))
    found = cluster.topics(names)
    if found and not arguments.yes:
        confirm(f"Delete {', '.join(found)} with all records?")
    missing = _missing(names, found)
    deleted, failed = [], False
    if found:
        request = DeleteTopicsRequest([DeleteTopicState(name) for name in found], [], TIMEOUT_MS)
        for answer in cluster.call(request).responses:
            if answer.error_code:
                failed = True
                complain(refusal(f"topic {answer.name}", answer.error_code, answer.error_message))
            else:
                deleted.append(answer.name)
    if arguments.json:
        print_json({"deleted": deleted})
    else:
        for name in deleted:
            print(f"{name} deleted")
    return 1 if failed or missing else 0


def _alter(cluster: Cluster, arguments: argparse.Namespace) -> int:
    name = arguments.topic
    operations = [AlterableConfig(key, SET, value) for key, value in arguments.config]
    operations += [AlterableConfig(key, DELETE, None) for key in arguments.delete_config]
    if not operations and arguments.partitions is None:
        arguments.action_parser.error("nothing to change: give --config, --delete-config or "
                                      "--partitions")  # fmt: skip
    before = _state(cluster, name)
    for dry_run in (True, False):
        if operations:
            _alter_configs(cluster, name, operations, dry_run)
        if arguments.partitions is not None and arguments.partitions != before["partitions"]:
            _add_partitions(cluster, name, arguments.partitions, dry_run)
    after = _state(cluster, name)
    changes = [
        {"name": key, "before": before.get(key), "after": after.get(key)}
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    if arguments.json:
        print_json({"topic": name, "changes": changes})
    elif changes:
        rows = [(one["name"], one["before"], one["after"]) for one in changes]
        print_table(("changed", "before", "after"), rows)
    else:
        print(f"{name} was so already, nothing changed")
    return 0


def _state(cluster: Cluster, name: str) -> dict[str, Any]:
    """Everything `alter` can change."""
    topic = cluster.topics([name]).get(name)
    if topic is None:
        raise refusal(f"topic {name}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    configs = {one["name"]: one["value"] for one in _configs(cluster, name)}
    return {"partitions": len(topic.partitions), **configs}


def _alter_configs(
    cluster: Cluster, name: str, operations: list[AlterableConfig], dry_run: bool
) -> None:
    resource = AlterConfigsResource(TOPIC_RESOURCE, name, operations)
    (answer,) = cluster.call(IncrementalAlterConfigsRequest([resource], dry_run)).responses
    if answer.error_code:
        raise refusal(f"topic {name}", answer.error_code, answer.error_message)


def _add_partitions(cluster: Cluster, name: str, total: int, dry_run: bool) -> None:
    topic = CreatePartitionsTopic(name, total, None)
    (answer,) = cluster.call(CreatePartitionsRequest([topic], TIMEOUT_MS, dry_run)).results
    if answer.error_code:
        raise refusal(f"topic {name}", answer.error_code, answer.error_message)
