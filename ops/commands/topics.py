"""`moldau topics`: list, create, delete and alter topics of a running broker.

describe and adopt have modules of their own.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from typing import Any

from moldau.broker.errors import ErrorCode
from moldau.broker.settings.kafka import TOPIC_KEYS
from moldau.ops.client import CONFIG_NAMES, ClientError, Cluster, refusal
from moldau.ops.command_line import (
    add_actions,
    complain,
    confirm,
    positive,
    print_json,
    print_table,
    run_action,
    show_deleted,
)
from moldau.ops.commands.topics_adopt import add_adopt
from moldau.ops.commands.topics_describe import add_describe, complain_of_missing
from moldau.ops.operations.configs import alter_topic_configs, topic_configs
from moldau.ops.operations.topics import (
    BROKER_DEFAULT,
    add_partitions,
    create_topics,
    delete_topics,
    id_text,
)

DESCRIPTION = "List, describe, create, delete and alter topics; adopt Redis streams as topics."

EXAMPLES = """\
examples:
  moldau topics list
  moldau topics create orders --partitions 6 --config retention.ms=86400000
  moldau topics describe orders
  moldau topics alter orders --partitions 12 --config cleanup.policy=compact
  moldau topics delete orders
  moldau topics adopt --stream sensors:raw      an existing Redis stream as a topic
  moldau topics ACTION --help       all options of an action
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = add_actions(parser, DESCRIPTION, EXAMPLES)
    add(
        "list",
        "show all topics",
        "examples:\n  moldau topics list\n  moldau topics list --json | jq -r '.topics[].name'\n",
        _list,
    )

    add_describe(add)

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
        "--partitions", type=positive, metavar="N", help="how many (the broker's num.partitions)"
    )
    create.add_argument(
        "--config", type=_setting, action="append", default=[], metavar="KEY=VALUE",
        help="a topic configuration; may be repeated",
    )  # fmt: skip
    create.add_argument(
        "--if-not-exists", action="store_true", help="accept a topic that exists already"
    )
    create.add_argument(
        "--dry-run", action="store_true", help="only check whether it would succeed"
    )

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
        "All changes are checked before the first is made. With more partitions, new records of a\n"
        "key may go to another partition than its older ones.\n",
        _alter,
    )
    alter.add_argument("topic", metavar="TOPIC")
    alter.add_argument(
        "--config", type=_setting, action="append", default=[], metavar="KEY=VALUE",
        help="set a topic configuration; may be repeated",
    )  # fmt: skip
    alter.add_argument(
        "--delete-config", action="append", default=[], metavar="KEY",
        help="reset one to the broker's default; may be repeated",
    )  # fmt: skip
    alter.add_argument(
        "--partitions", type=positive, metavar="N", help="the new number of partitions"
    )

    add_adopt(add)


run = run_action


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key.strip() or not equals:
        raise argparse.ArgumentTypeError(f"want KEY=VALUE, got {text!r}")
    return key.strip(), value


def _list(cluster: Cluster, arguments: argparse.Namespace) -> int:
    topics = [
        {
            "name": topic.name,
            "id": id_text(topic.topic_id),
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


# --- create, delete, alter ---


def _create(cluster: Cluster, arguments: argparse.Namespace) -> int:
    names = list(dict.fromkeys(arguments.topics))
    partitions = arguments.partitions or BROKER_DEFAULT
    answers = create_topics(cluster, names, partitions, arguments.config, dry_run=arguments.dry_run)
    results, failed = [], False
    for answer in answers:
        exists = answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        if answer.error_code and not (exists and arguments.if_not_exists):
            failed = True
            remedy = None
            if answer.error_code == ErrorCode.INVALID_CONFIG:
                remedy = _spelling(TOPIC_KEYS, (key for key, _ in arguments.config))
            subject = f"topic {answer.name}"
            complain(refusal(subject, answer.error_code, answer.error_message, remedy))
            continue
        results.append(
            {
                "name": answer.name,
                "id": None if exists or arguments.dry_run else id_text(answer.topic_id),
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


def _spelling(known: Iterable[str], wanted: Iterable[str]) -> str | None:
    """A suggestion for the first name that is not known."""
    names = set(known)
    for key in wanted:
        if key not in names and (close := difflib.get_close_matches(key, names, 1, 0.5)):
            return f"did you mean {close[0]}?"
    return None


def _created_text(result: dict[str, Any], dry_run: bool) -> str:
    if result["partitions"] is None:
        return f"{result['name']} exists already"
    verb = "can be created" if dry_run else "created"
    return f"{result['name']} {verb}, partitions: {result['partitions']}"


def _delete(cluster: Cluster, arguments: argparse.Namespace) -> int:
    names = list(dict.fromkeys(arguments.topics))
    found = cluster.topics(names)
    if found and not arguments.yes:
        confirm(f"Delete {', '.join(found)} with all records?")
    missing = complain_of_missing(names, found)
    outcomes = delete_topics(cluster, found) if found else {}
    for error in outcomes.values():
        if error is not None:
            complain(error)
    deleted = [name for name, error in outcomes.items() if error is None]
    show_deleted(arguments, deleted)
    return 1 if missing or len(deleted) < len(outcomes) else 0


def _alter(cluster: Cluster, arguments: argparse.Namespace) -> int:
    name = arguments.topic
    configs = [*arguments.config, *((key, None) for key in arguments.delete_config)]
    if not configs and arguments.partitions is None:
        arguments.action_parser.error("nothing to change: give --config, --delete-config or "
                                      "--partitions")  # fmt: skip
    before = _state(cluster, name)
    for key, _ in configs:
        if key not in before:
            what = f"topic {name}: there is no topic configuration {key}"
            raise ClientError(f"{what}; {_spelling(before, [key]) or CONFIG_NAMES}")
    for dry_run in (True, False):
        if configs:
            alter_topic_configs(cluster, name, configs, dry_run=dry_run)
        if arguments.partitions is not None and arguments.partitions != before["partitions"]:
            add_partitions(cluster, name, arguments.partitions, dry_run=dry_run)
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
        print(f"{name} has this configuration already, nothing changed")
    return 0


def _state(cluster: Cluster, name: str) -> dict[str, Any]:
    """Everything `alter` can change."""
    topic = cluster.topics([name]).get(name)
    if topic is None:
        raise refusal(f"topic {name}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    configs = {one.name: one.value for one in topic_configs(cluster, name)}
    return {"partitions": len(topic.partitions), **configs}
