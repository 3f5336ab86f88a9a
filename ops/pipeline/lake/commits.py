"""One durable commit to a Delta table, on the version that the caller has read.

delta-rs rebases a commit onto the versions that others have committed since, and two appends never
conflict. Only a Delta transaction of the same application does: a commit is refused if one of the
versions after the caller's carries a transaction of an application that this commit carries too.
That is why the table must be the very one that was read: a table that is opened again has seen
those versions already, and accepts the same transaction a second time.

A commit that raises may be part of the table all the same. delta-rs writes the log's checkpoint
after every hundredth commit and raises if that fails, on a full disk for example, and a network
file system may report an error for a file that it created. Each commit therefore carries an id of
its own, which is looked for in the log before anyone is told that nothing was added.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.lake.data_files import NewFile, sync_directory
from moldau.ops.pipeline.lake.schemas import PARTITIONED_BY

logger = logging.getLogger("moldau.pipeline")

COMMIT_ID = "moldau.commit"
_LOG = "_delta_log"


class CommitRefused(Exception):
    """Nothing was added: the log of the table does not have the commit."""


class CommitConflict(CommitRefused):
    """Another program has changed the table since it was read."""


def add_actions(files: Sequence[NewFile], *, data_change: bool) -> list[Any]:
    now_ms = int(time.time() * 1000)
    return [
        AddAction(one.path, one.size, one.partition_values, now_ms, data_change, one.stats)
        for one in files
    ]


def commit_on(
    opened: DeltaTable,
    path: Path,
    actions: list[Any],
    versions: Mapping[str, int],
    metadata: Mapping[str, str],
    retries: int,
) -> int:
    """Commit on the version of the table that `opened` shows; on the disk when this returns.

    Returns the version of this commit. Raises CommitRefused if it is not part of the table, and
    PipelineError if that cannot be found out.
    """
    commit_id = str(uuid.uuid4())
    properties = CommitProperties(
        custom_metadata={**metadata, COMMIT_ID: commit_id},
        max_commit_retries=retries,
        app_transactions=[Transaction(app, version) for app, version in versions.items()],
    )
    fault: Exception | None = None
    try:
        opened.create_write_transaction(
            actions, "append", opened.schema(), PARTITIONED_BY, commit_properties=properties
        )
    except (OSError, DeltaError) as error:
        fault = error
    log = path / _LOG
    try:
        version = _version_of(log, commit_id, opened.version())
        if version is not None:
            # The broker may trim, and a compaction may delete, what this commit stands for.
            sync_directory(log, with_file=f"{version:020}.json")
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"{path}: it is not known whether the last commit was added, as the log of the table "
            f"cannot be read: {error} (the commit itself: {fault or 'no error'}). Run it again "
            "when the disk works: it goes on where the table ends"
        ) from (fault or error)
    if version is None:
        if fault is None:
            raise PipelineError(
                f"{path}: the commit succeeded, but the log of the table does not have it; does "
                "another program delete files there?"
            )
        refused = CommitConflict if isinstance(fault, CommitFailedError) else CommitRefused
        raise refused(str(fault)) from fault
    if fault is not None:
        logger.warning(
            "%s: version %d was committed, but an error followed: %s; is the disk full?",
            *(path, version, fault),
        )
    return version


def _version_of(log: Path, commit_id: str, since: int) -> int | None:
    """The version after `since` that a commit became, if it is part of the log."""
    # Not from one version to the next: old files of the log may be cleaned up at any time.
    found = {file.stem: file for file in log.glob("*.json") if file.stem.isdigit()}
    for name in sorted((name for name in found if int(name) > since), reverse=True):
        with found[name].open(encoding="utf-8") as lines:
            for line in lines:
                # Of a large commit, only the line with the id is worth parsing.
                if commit_id in line and "commitInfo" in (entry := json.loads(line)):
                    if entry["commitInfo"].get(COMMIT_ID) == commit_id:
                        return int(name)
                    break
    return None
