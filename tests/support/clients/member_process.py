"""A group member as a process of its own, to be stopped, continued and killed by tests.

    python -m tests.support.clients.member_process <client> <bootstrap> <group> <topic> <session ms>

A real client ("confluent", "kafka_python", "aiokafka"): writes `<partition> <offset>` for each
record; it commits a little later, and so leaves something uncommitted when it is killed. After
SIGUSR1 it stops itself (SIGSTOP) instead of its next commit, which is the first thing it does when
it is continued.

"raw": joins the group alone on the port of its coordinator, writes `joined <generation>` and then,
for every line on standard input, commits that offset of partition 0 and writes `<code>`; in between
it heartbeats.
"""

import os
import select
import signal
import sys
import time
from types import FrameType

from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaException
from kafka.errors import KafkaError as KafkaPythonError

from tests.support.clients.members import (
    AiokafkaMember,
    ConfluentMember,
    Got,
    KafkaPythonMember,
    Member,
    MemberSettings,
)
from tests.support.raw.group import RawMember

CLIENTS: dict[str, type[Member]] = {
    "confluent": ConfluentMember,
    "kafka_python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
}
HEARTBEAT_S = 0.3
COMMIT_INTERVAL_S = 0.5


class Printed(list[Got]):
    """Says what is added to it at once: after a kill the file tells what was read."""

    def __iadd__(self, found: list[Got]) -> "Printed":  # type: ignore[override,misc]
        lines = "".join(f"{got.place.partition} {got.offset}\n" for got in found)
        os.write(1, lines.encode())
        return self


class LateCommits:
    """Commits at intervals, as applications do. One that is refused is no reason to end: the
    records come again, to their new owner."""

    def __init__(self, member: Member) -> None:
        self._poll, self._commit = member.poll, member.commit
        self._since: float | None = None
        self.stop_first = False
        member.poll, member.commit = self.poll, self.commit  # type: ignore[method-assign]
        member.refused = self.refused  # type: ignore[method-assign]

    def commit(self) -> None:
        if self._since is None:
            self._since = time.monotonic()

    def poll(self) -> list[Got]:
        if self._since is not None and time.monotonic() - self._since > COMMIT_INTERVAL_S:
            self._since = None
            if self.stop_first:
                self.stop_first = False
                os.kill(os.getpid(), signal.SIGSTOP)
            try:
                self._commit()
            except (KafkaException, KafkaPythonError, AioKafkaError) as refusal:
                self.refused(refusal)
        return self._poll()

    def refused(self, refusal: Exception) -> None:
        print(f"not committed: {refusal!r}", file=sys.stderr, flush=True)


def run_client(name: str, bootstrap: str, group: str, topic: str, session_ms: int) -> None:
    settings = MemberSettings(group=group, topics=[topic], session_ms=session_ms)
    member = CLIENTS[name](bootstrap, settings)
    member.got = Printed()
    commits = LateCommits(member)

    def stop(number: int, frame: FrameType | None) -> None:
        member.tell()

    def stop_before_commit(number: int, frame: FrameType | None) -> None:
        commits.stop_first = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGUSR1, stop_before_commit)
    member.run()
    member.check()


def run_raw(port: int, group: str, topic: str, session_ms: int) -> None:
    with RawMember(port, group, session_ms=session_ms) as member:
        member.enter()
        print("joined", member.generation, flush=True)
        while True:
            readable, _, _ = select.select([0], [], [], HEARTBEAT_S)
            if not readable:
                member.heartbeat()
                continue
            line = os.read(0, 100)
            if not line:
                return
            print(member.commit(topic, int(line)), flush=True)


def main() -> None:
    name, where, group, topic, session_ms = sys.argv[1:]
    if name == "raw":
        run_raw(int(where), group, topic, int(session_ms))
    else:
        run_client(name, where, group, topic, int(session_ms))


if __name__ == "__main__":
    main()
