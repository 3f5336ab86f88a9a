"""Errors of the pipeline: the text names the cause and what to do about it."""

from __future__ import annotations

import re

from moldau.ops.client import ClientError, TopicPartition


class PipelineError(ClientError):
    """The base of all of them."""


class DataLoss(PipelineError):
    """Records to be read no longer exist, and failOnDataLoss is true."""


_TO_CONTINUE = "set failOnDataLoss=false (the archiver: --allow-data-loss)"


def offsets_trimmed(partition: TopicPartition, wanted: int, earliest: int) -> DataLoss:
    return DataLoss(
        f"partition {partition}: offsets {wanted} to {earliest - 1} were to be read, but the log "
        f"now begins at {earliest}; records aged out (retention.ms, retention.bytes) or were "
        f"deleted before they were read. To continue with what is left {_TO_CONTINUE}; to prevent "
        "it give the topic a longer retention, or remote.storage.enable=true, which keeps records "
        "until they are archived"
    )


def beyond_the_end(partition: TopicPartition, wanted: int, latest: int) -> DataLoss:
    return DataLoss(
        f"partition {partition}: offsets up to {wanted} were to be read, but the log ends at "
        f"{latest}; was the topic deleted and created again? To continue {_TO_CONTINUE}, or start "
        "over with a new checkpoint"
    )


def partition_gone(partition: TopicPartition) -> DataLoss:
    return DataLoss(
        f"partition {partition} was read before and no longer exists; was its topic deleted? To "
        f"continue with the others {_TO_CONTINUE}, or start over with a new checkpoint"
    )


def unreadable(partition: TopicPartition, offset: int, reason: str) -> DataLoss:
    return DataLoss(
        f"partition {partition}: the batch at offset {offset} cannot be read: {reason}. To "
        "continue without its records set onUnreadable=skip; `moldau pipeline archive` keeps its "
        "bytes; moldau.batch.validation=full refuses such batches"
    )


# The last line of a Python traceback. Spark passes tracebacks on as text, wherever they come from:
# a task, a reader of the source, the function of foreachBatch.
_RAISED_HERE = re.compile(r"^moldau\.ops\.(?:\w+\.)+\w+: (.+)", re.MULTILINE)


def from_spark(error: Exception, resumes_at: str = "where it stopped") -> PipelineError:
    """The pipeline's own error inside one of Spark's, or else Spark's in one line."""
    raised = _RAISED_HERE.findall(str(error))
    if raised:
        return PipelineError(raised[-1].strip())  # those before it are its causes
    first_line = next(iter(str(error).strip().splitlines()), "")
    return PipelineError(f"Spark gave up: {first_line}; run it again, it resumes {resumes_at}")
