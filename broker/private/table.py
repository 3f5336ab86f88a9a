"""The private APIs: requests between the processes of one broker, over their unix sockets.

| key | API | request | answer | who asks |
|---|---|---|---|---|
| 32767 | PREAMBLE | an identity | none | routers and workers, before anything else: for whom they speak |
| 32766 | WHO_AM_I | nothing | an identity | a router or the console, while it relays a login |
| 32765 | METRICS | nothing | metrics and tables of a process | the HTTP process, `moldau top` |
| 32764 | ENDED_SESSIONS | nothing | sessions that are over, as they end | routers, the console |
| 32763 | RECORD_TIMES | offsets | timestamps | the HTTP process |
| 32762 | CONNECTION_LIMITS | nothing | limits, at once and when they change | routers |
| 32761 | RECORD_COUNTS | committed offsets | numbers of records | the HTTP process, `moldau groups` |
| 32760 | STREAM_VIEWS | streams | what Redis shows of them | the console, `moldau topics` |
| 32759 | VISIBLE_NAMES | an identity | what this user may see | the console |
| 32758 | ACL_ORIGINS | nothing | who made each ACL, and when | `moldau acls explain` |
| 32757 | LEASE | nothing | until when this broker may serve, with each renewal | routers |

Workers serve all of them (handlers/private/, server/login.py), routers PREAMBLE and METRICS. Over
TCP their keys are unknown, and close the connection.
"""  # noqa: E501

from __future__ import annotations

import msgspec

from moldau.broker.metrics.document import Document
from moldau.broker.private.api import Asker, PrivateApi
from moldau.broker.private.stream_views import StreamsWanted, StreamView
from moldau.broker.security.connection_limits import LimitsInForce
from moldau.broker.security.identity import EndedSessions, Identity

# --- the time at which records were produced, asked of the leader ---

RecordOffset = tuple[str, int, int]  # topic, partition, offset
# Milliseconds since 1970, in the order of the request. -1: the record has no timestamp, or there
# is no record at the offset. None: there was no time to look it up; ask again.
Times = list[int | None]
MAX_RECORD_TIMES = 1_000  # in one request

# --- how many records groups are behind, asked of the leader ---
# Offsets of native topics are made of times: their records have to be counted in the store.

Behind = tuple[str, int, str, int]  # topic, partition, group, the offset it has committed
# In the order of the request. UNKNOWN: too many to count. None: there was no time left; ask again.
Counts = list[int | None]
UNKNOWN = -1
MAX_BEHIND = 1_000  # in one request


class VisibleNames(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a user may describe: `topics` of the cluster and `groups` of this worker, or
    `everything`."""

    is_over: bool = False  # the session has ended: the user was removed or has another password
    everything: bool = False
    cluster: bool = False  # the user may describe the cluster
    topics: list[str] = []
    groups: list[str] = []


class AclOrigin(msgspec.Struct, frozen=True):
    created_by: str
    created_ms: int


PREAMBLE = PrivateApi[Identity, None](32767, "Preamble", Identity, None, answers="never")
WHO_AM_I = PrivateApi[None, Identity](32766, "WhoAmI", None, Identity, Asker.LOGIN)
METRICS = PrivateApi[None, Document](32765, "Metrics", None, Document)
ENDED_SESSIONS = PrivateApi[None, EndedSessions](
    32764, "EndedSessions", None, EndedSessions, answers="often"
)
RECORD_TIMES = PrivateApi[list[RecordOffset], Times](
    32763, "RecordTimes", list[RecordOffset], Times
)
CONNECTION_LIMITS = PrivateApi[None, LimitsInForce](
    32762, "ConnectionLimits", None, LimitsInForce, answers="often", is_sorted=True
)
RECORD_COUNTS = PrivateApi[list[Behind], Counts](32761, "RecordCounts", list[Behind], Counts)
STREAM_VIEWS = PrivateApi[StreamsWanted, list[StreamView | None]](
    32760, "StreamViews", StreamsWanted, list[StreamView | None]
)
VISIBLE_NAMES = PrivateApi[Identity, VisibleNames](32759, "VisibleNames", Identity, VisibleNames)
ACL_ORIGINS = PrivateApi[None, dict[str, AclOrigin]](
    32758, "AclOrigins", None, dict[str, AclOrigin]
)
# By the clock of the machine (broker/net/lease.py), in nanoseconds.
LEASE = PrivateApi[None, int](32757, "Lease", None, int, answers="often")

TABLE = (
    PREAMBLE,
    WHO_AM_I,
    METRICS,
    ENDED_SESSIONS,
    RECORD_TIMES,
    CONNECTION_LIMITS,
    RECORD_COUNTS,
    STREAM_VIEWS,
    VISIBLE_NAMES,
    ACL_ORIGINS,
    LEASE,
)
