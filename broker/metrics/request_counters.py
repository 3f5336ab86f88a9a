"""Counters of a worker's connections: requests, their durations, their errors, bytes.

They are plain integers, since the hot path passes here; families are made of them on request.
"""

from __future__ import annotations

from moldau.broker.errors import ErrorCode
from moldau.broker.metrics.document import Family, Kind, Sample
from moldau.broker.metrics.error_codes import finders
from moldau.broker.metrics.histogram import DurationHistogram, duration_family, new_counts
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.schema import Message

OTHERS = "others"
# APIs with durations of their own.
TIMED = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.OFFSET_COMMIT,
    ApiKey.HEARTBEAT,
    ApiKey.METADATA,
)


class RequestCounters:
    __slots__ = ("at_once", "bytes_in", "bytes_out", "durations", "errors", "fetch_wait")

    def __init__(self) -> None:
        self.at_once = [0] * (max(APIS) + 1)  # requests answered on receipt, by API key
        # All other requests, by the bits of the nanoseconds from receipt to reply. The time that a
        # Fetch was parked does not count.
        self.durations = {key: new_counts() for key in APIS}
        self.fetch_wait = DurationHistogram()
        self.errors: dict[tuple[int, int], int] = {}  # by API key and error code
        self.bytes_in = 0
        self.bytes_out = 0

    def count_errors(self, key: int, message: Message) -> None:
        for code in finders[type(message)](message):
            self.errors[key, code] = self.errors.get((key, code), 0) + 1

    def _histogram(self, key: int) -> DurationHistogram:
        """Includes requests answered on receipt, which take less than the first bucket."""
        counts = list(self.durations[key])
        counts[0] += self.at_once[key]
        return DurationHistogram(counts)

    def families(self) -> list[Family]:
        counts = {key: self.at_once[key] + sum(self.durations[key]) for key in APIS}
        timed = [self._histogram(key).sample((APIS[key].name,)) for key in TIMED]
        rest = [self.durations[key] for key in APIS if key not in TIMED]
        others = DurationHistogram([sum(each) for each in zip(*rest, strict=True)])
        return [
            Family("moldau_kafka_requests_total", Kind.COUNTER, "Requests answered.", ("api",),
                   [Sample((APIS[key].name,), count) for key, count in counts.items() if count]),
            Family("moldau_kafka_request_errors_total", Kind.COUNTER,
                   "Error codes in responses: of requests, or of topics and groups in them.",
                   ("api", "error"),
                   [Sample((APIS[key].name, _error_name(code)), count)
                    for (key, code), count in self.errors.items()]),
            duration_family(
                "moldau_kafka_request_duration_seconds",
                "From the receipt of a request to its reply; of a Fetch without its wait.",
                ("api",), [*timed, others.sample((OTHERS,))]),
            duration_family("moldau_kafka_fetch_wait_seconds", "How long fetches were parked.",
                            (), [self.fetch_wait.sample()]),
            Family("moldau_kafka_request_bytes_total", Kind.COUNTER, "Bytes received.", (),
                   [Sample((), self.bytes_in)]),
            Family("moldau_kafka_response_bytes_total", Kind.COUNTER, "Bytes sent.", (),
                   [Sample((), self.bytes_out)]),
        ]  # fmt: skip


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
