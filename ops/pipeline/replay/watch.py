"""Progress of a replay, by the growth of its target: tasks report nothing before they end."""

from __future__ import annotations

import logging
import threading
from typing import Self

from moldau.ops.client import LATEST, ClientError
from moldau.ops.pipeline.progress import Meter
from moldau.ops.pipeline.replay.job import Job, target_offsets
from moldau.ops.pipeline.source.fetch import FetchSettings, connect

logger = logging.getLogger("moldau.pipeline")

POLL_S = 1.0


class ProgressWatch:
    """A thread that polls the end offsets of the target and advances the meter."""

    def __init__(
        self, settings: FetchSettings, job: Job, meter: Meter, bytes_per_record: float
    ) -> None:
        self._settings = settings
        self._job = job
        self._meter = meter
        self._bytes_per_record = bytes_per_record
        self._seen = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            try:
                self._poll()
            except ClientError as fault:
                logger.info("progress is unknown at the moment: %s", fault)

    def _poll(self) -> None:
        with connect(self._settings) as cluster:
            ends = target_offsets(cluster, self._job.target, self._job.begins, LATEST)
        grown = sum(end - self._job.begins[at] for at, end in ends.items())
        self.reached(min(grown, self._job.rows))

    def reached(self, done: int) -> None:
        more = max(done - self._seen, 0)
        self._seen += more
        self._meter.advance(more, int(more * self._bytes_per_record), self._job.rows - self._seen)
