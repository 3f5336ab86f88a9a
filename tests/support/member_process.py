"""A group member as a process of its own, to be stopped, continued and killed by tests.

    python -m tests.support.member_process <client> <bootstrap> <group> <topic> <session ms>

A real client ("confluent", "kafka_python", "aiokafka"): writes `<partition> <offset>` for each
record, before it commits it. "raw": joins the group alone on the port of its coordinator, writes
`joined <generation>` and then, for every line on standard input, commits that offset of partition 0
and writes `<code>`; in between it heartbeats.
"""

import os
import select
import signal
import sys
from types import FrameType

from tests.support.clients.members import (
    AiokafkaMember,
    ConfluentMember,
    Got,
    KafkaPythonMember,
    Member,
    MemberSettings,
)
from tests.support.raw_group import RawMember

CLIENTS: dict[str, type[Member]] = {
    "confluent": ConfluentMember,
    "kafka_python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
}
HEARTBEAT_S = 0.3


class Printed(list[Got]):
    """Says what is added to it at once: after a kill the file tells what was read."""

    def __iadd__(self, found: list[Got]) -> "Printed":  # type: ignore[override,misc]
        lines = "".join(f"{got.place.partition} {got.offset}\n" for got in found)
        os.write(1, lines.encode())
        return self


def run_client(name: str, bootstrap: str, group: str, topic: str, session_ms: int) -> None:
    settings = MemberSettings(group=group, topics=[topic], session_ms=session_ms)
    member = CLIENTS[name](bootstrap, settings)
    member.got = Printed()

    def stop(number: int, frame: FrameType | None) -> None:
        member.tell()

    signal.signal(signal.SIGTERM, stop)
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
