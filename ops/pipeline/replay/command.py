"""`moldau pipeline replay`."""

from __future__ import annotations

import argparse
import datetime

from moldau.ops.client import ClientError, parse_addresses
from moldau.ops.command_line import Actions, add_bootstrap, bootstrap_of, client_settings
from moldau.ops.pipeline.common_options import add_lake_action, whole_number

EXAMPLES = """\
Keys, values, headers and timestamps are kept. If it is killed, run the same command again: it
resumes where it stopped, and no record is lost or sent twice. The records to send are fixed when it
starts; once it is done the same command does nothing, unless --again is given.

examples:
  moldau pipeline replay --lake /data/lake --topic orders --to orders-restored
  moldau pipeline replay --lake /data/lake --topic orders --to audit --from-time 2026-01-31T12:00:00Z
  moldau pipeline replay --lake /data/lake --topic orders --to wider --partitions hash
"""  # noqa: E501


def timestamp_ms(text: str) -> int:
    """Parse milliseconds since 1970 or an ISO 8601 time, which is UTC unless it has a zone."""
    if text.isascii() and text.lstrip("-").isdigit():
        return int(text)
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


timestamp_ms.__name__ = "time, such as 2026-01-31T12:00:00Z or milliseconds since 1970"


def add_replay_action(actions: Actions) -> None:
    parser = add_lake_action(
        actions, "replay", "send records of a lake to a topic", EXAMPLES, _replay
    )
    add_bootstrap(parser)
    parser.add_argument("--topic", required=True, metavar="NAME", help="the topic in the lake")
    parser.add_argument("--to", required=True, metavar="NAME", help="the topic to send to")
    since = parser.add_mutually_exclusive_group()
    since.add_argument(
        "--from-offset", type=whole_number, metavar="N", help="start of each partition"
    )
    since.add_argument(
        "--from-time", type=timestamp_ms, metavar="TIME", help="skip records older than this"
    )
    parser.add_argument(
        "--partitions", choices=("keep", "hash"), default="keep",
        help="send a record to the partition it was in, or by its key (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--compression", choices=("none", "gzip", "snappy", "lz4", "zstd"), default="lz4",
        help="codec of the batches sent (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--again", action="store_true", help="start over, even if it is done")


def _replay(arguments: argparse.Namespace) -> int:
    from moldau.ops.pipeline.lake.schemas import RECORDS
    from moldau.ops.pipeline.lake.tables import Lake
    from moldau.ops.pipeline.progress import Meter
    from moldau.ops.pipeline.replay.replayer import Replayer, ReplayRequest
    from moldau.ops.pipeline.session import spark_session
    from moldau.ops.pipeline.source.fetch import FetchSettings, connect

    client = client_settings(arguments)
    try:
        addresses = tuple(parse_addresses(bootstrap_of(arguments, client)))
    except ValueError as error:
        raise ClientError(str(error)) from None
    settings = FetchSettings(addresses, client_id="moldau-replay", security=client.security)
    lake = Lake(arguments.lake)
    lake.open(RECORDS)
    connect(settings).__exit__()
    request = ReplayRequest(
        arguments.topic,
        arguments.to,
        arguments.partitions,
        arguments.from_offset,
        arguments.from_time,
        arguments.compression,
        arguments.again,
    )
    with (
        Meter("replay") as meter,
        spark_session("moldau-replay", arguments.master, plans_only=True) as spark,
    ):
        outcome = Replayer(spark, lake, settings, request, meter).run()
    if outcome.done_before is not None:
        print(f"already done, at {outcome.done_before}; --again starts over")
    else:
        before = outcome.rows - outcome.sent
        print(
            f"{arguments.topic} to {arguments.to}: {outcome.sent:,} records sent"
            + (f", {before:,} had been sent before" if before else "")
            + (
                f"; {outcome.unreadable:,} unreadable batches left out"
                if outcome.unreadable
                else ""
            )
        )
    return 0
