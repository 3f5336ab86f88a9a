"""`moldau transactions abort`: of a transactional id, or of one that hangs in a partition."""

from __future__ import annotations

import argparse
from typing import Any

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.describe_transactions import TransactionState
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.ops.client import TRANSACTION, Backoff, ClientError, Cluster, TopicPartition, refusal
from moldau.ops.command_line import AddAction, complain, confirm, parsed_by, print_json, printable
from moldau.ops.commands.transactions_find_hanging import hanging_document, parse_partition
from moldau.ops.operations.hanging_transactions import find_open, write_abort_marker
from moldau.ops.operations.reset_offsets import parse_offset
from moldau.ops.operations.transactions import ONGOING, find_transaction

HELP = """\
examples:
  moldau transactions abort billing-7
  moldau transactions abort billing-7 billing-8 --yes
  moldau transactions abort --topic orders --partition 0 --start-offset 4711

By id: what it has written is never read by read_committed consumers, offsets it was to commit are
dropped, and its producer is fenced: a client that still runs gets a fatal error, and has to be
started again.

By partition and first offset: for a transaction that hangs there, as `moldau transactions
find-hanging` shows it. Only this partition is changed. It is refused for a transaction that a
coordinator knows: abort that by its id.
"""

PATIENCE_S = 15.0  # for markers to be written
AGAIN = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


def add_abort(add: AddAction) -> None:
    summary = "abort an open transaction and fence its producer, or end one that hangs"
    parser = add("abort", summary, HELP, _abort)
    parser.add_argument("ids", nargs="*", metavar="ID", help="a transactional id")
    parser.add_argument("--topic", metavar="TOPIC", help="where it hangs")
    parser.add_argument("--partition", type=parsed_by(parse_partition), metavar="P")
    parser.add_argument(
        "--start-offset", type=parsed_by(parse_offset), metavar="N", help="of its first record"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def _abort(cluster: Cluster, arguments: argparse.Namespace) -> int:
    hanging = (arguments.topic, arguments.partition, arguments.start_offset)
    if arguments.ids and hanging == (None, None, None):
        return _abort_ids(cluster, arguments)
    if arguments.ids or None in hanging:
        arguments.action_parser.error(
            "want either transactional ids, or all of --topic, --partition and --start-offset"
        )
    return _abort_hanging(cluster, arguments)


# --- by id ---


def _abort_ids(cluster: Cluster, arguments: argparse.Namespace) -> int:
    wanted = list(dict.fromkeys(arguments.ids))
    found: list[TransactionState] = []
    for transactional_id in wanted:
        try:
            found.append(_find_ongoing(cluster, transactional_id))
        except ClientError as error:
            complain(error)
    if found and not arguments.yes:
        names = ", ".join(one.transactional_id for one in found)
        confirm(f"Abort the transaction of {names}, and fence its producer?")
    aborted: list[dict[str, Any]] = []
    for one in found:
        try:
            aborted.append(_abort_one(cluster, one))
        except ClientError as error:
            complain(error)
    if arguments.json:
        print_json({"aborted": aborted})
    else:
        for done in aborted:
            print(f"{printable(done['transactional_id'])} aborted, its producer is fenced")
    return 0 if len(aborted) == len(wanted) else 1


def _find_ongoing(cluster: Cluster, transactional_id: str) -> TransactionState:
    """Raises ClientError if there is nothing to abort."""
    found = find_transaction(cluster, transactional_id)
    if found.transaction_state == ONGOING:
        return found
    what = f"transactional id {transactional_id}: it is {found.transaction_state}"
    if found.transaction_state.startswith("Prepare"):
        raise ClientError(
            f"{what}, which is decided and ends by itself; `moldau transactions describe` shows "
            "where it is still open, `moldau status` whether a worker or the store is down"
        )
    raise ClientError(
        f"{what}, no transaction is open; `moldau transactions find-hanging` shows those that are "
        "open in a partition without their coordinator's knowledge"
    )


def _abort_one(cluster: Cluster, seen: TransactionState) -> dict[str, Any]:
    """As a new producer with this id would. Raises ClientError."""
    transactional_id = seen.transactional_id
    now = _find_ongoing(cluster, transactional_id)  # the question may have been open for a while
    if now.transaction_start_time_ms != seen.transaction_start_time_ms:
        raise ClientError(
            f"transactional id {transactional_id}: the transaction has ended meanwhile and "
            "another one has begun, to which nothing was done"
        )
    # With the timeout it has: the coordinator would keep another one.
    request = InitProducerIdRequest(transactional_id, now.transaction_timeout_ms)
    patience = Backoff(PATIENCE_S)
    while True:
        answer = cluster.call_coordinator(
            transactional_id, request, lambda answer: int(answer.error_code), TRANSACTION
        )
        if answer.error_code not in AGAIN or not patience.wait():
            break
    if answer.error_code:
        raise refusal(f"transactional id {transactional_id}", answer.error_code)
    return {
        "transactional_id": transactional_id,
        "producer_id": answer.producer_id,
        "producer_epoch": answer.producer_epoch,
    }


# --- one that hangs ---


def _abort_hanging(cluster: Cluster, arguments: argparse.Namespace) -> int:
    place = TopicPartition(arguments.topic, arguments.partition)
    found = find_open(cluster, place, arguments.start_offset)
    if not arguments.yes:
        confirm(f"Abort the transaction of producer {found.producer_id} in {place}?")
        found = find_open(cluster, place, arguments.start_offset)
    write_abort_marker(cluster, found)
    if arguments.json:
        print_json({"aborted": [hanging_document(found)]})
    else:
        print(f"{place}: the transaction from offset {found.start_offset} on is aborted")
    return 0
