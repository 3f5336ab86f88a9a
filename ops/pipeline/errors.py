"""What can go wrong in the pipeline, in words an operator can act on."""

from __future__ import annotations

from ops.client import ClientError, TopicPartition


class PipelineError(ClientError):
    """The text names the cause and the remedy."""


class DataLoss(PipelineError):
    """Records that were to be read are gone, and failOnDataLoss is true."""


_GO_ON = "set failOnDataLoss=false (the archiver: --allow-data-loss)"


def offsets_trimmed(place: TopicPartition, wanted: int, earliest: int) -> DataLoss:
    return DataLoss(
        f"partition {place}: offsets {wanted} to {earliest - 1} were to be read, but the log "
        f"begins at {earliest} now; records aged out (retention.ms, retention.bytes) or were "
        f"deleted before they were read. To go on with what is left {_GO_ON}; to "
        "keep it from happening again give the topic a longer retention, or "
        "remote.storage.enable=true, with which nothing is trimmed before it is archived"
    )


def beyond_the_end(place: TopicPartition, wanted: int, latest: int) -> DataLoss:
    return DataLoss(
        f"partition {place}: offset {wanted} was to be read up to, but the log ends at {latest}; "
        f"was the topic deleted and created again? To go on {_GO_ON}, or begin anew with a new "
        "checkpoint"
    )


def partition_gone(place: TopicPartition) -> DataLoss:
    return DataLoss(
        f"partition {place} was read before and is gone; was its topic deleted? To go on with the "
        f"rest {_GO_ON}, or begin anew with a new checkpoint"
    )
