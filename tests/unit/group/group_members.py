"""Consumers that play members of a group in virtual time, and a witness of the answers they get.

A `Consumer` behaves as clients do: it joins, computes assignments when it leads, syncs, heartbeats,
and takes errors as the clients' libraries take them. Tests make it misbehave from outside.
"""

from dataclasses import dataclass, field, replace

from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic.group import Group
from moldau.broker.group.effects import JoinAnswer, SyncAnswer
from moldau.broker.group.events import Join, Leave, LeavingMember, Protocols, Sync
from moldau.broker.group.offsets import Committer
from tests.support.drivers.group_driver import GroupDriver
from tests.support.drivers.group_world import Call

PARTITIONS = range(7)


@dataclass(frozen=True)
class Delivery:
    """An assignment that a process has received."""

    identity: str
    member_id: str
    instance: str | None
    generation: int
    partitions: frozenset[int]

    @property
    def owner(self) -> str:
        """A static member's processes are one owner: the new one inherits the assignment."""
        return self.instance or self.member_id


@dataclass
class Witness:
    """All that was ever delivered, and what must hold for it.

    In a generation a partition belongs to one owner, however often it is asked for. Who may commit
    holds the newest assignment: no later generation was delivered to anybody, and no other process
    of the same static member got it. So two that may commit never share a partition.
    """

    g: GroupDriver
    deliveries: list[Delivery] = field(default_factory=list)

    def saw(self, delivery: Delivery) -> None:
        """Answered means stored: a restart finds this generation or a later one."""
        record = self.g.record
        assert record.identity == delivery.identity
        assert record.generation_id >= delivery.generation, f"{delivery} is not stored"
        if record.generation_id == delivery.generation:
            stored = {member.member_id: member.assignment for member in record.members}
            # Not there: a new process was stored instead, though its write failed in name.
            assert frozenset(stored.get(delivery.member_id, delivery.partitions)) == (
                delivery.partitions
            )
        if delivery not in self.deliveries:
            self.deliveries.append(delivery)

    def may_commit(self, delivery: Delivery) -> bool:
        """Ask without renewing the session, as a real commit would."""
        group = self.g.groups.by_id.get(self.g.group_id)
        if not isinstance(group, Group):
            return False
        member = group.roster.by_id.get(delivery.member_id)
        deadline = None if member is None else member.session_deadline_ms
        committer = Committer(delivery.member_id, delivery.instance, delivery.generation)
        error = group.check_commit(committer, self.g.now)
        if member is not None and deadline is not None:
            member.session_deadline_ms = deadline
        return error is ErrorCode.NONE

    def check(self) -> None:
        owners: dict[tuple[str, int, int], str] = {}
        for delivery in self.deliveries:
            for partition in delivery.partitions:
                key = (delivery.identity, delivery.generation, partition)
                other = owners.setdefault(key, delivery.owner)
                assert other == delivery.owner, f"{key}: {other} and {delivery.owner}"
        for number, delivery in enumerate(self.deliveries):
            if self.may_commit(delivery):
                self._check_not_fenced(delivery, self.deliveries[number + 1 :])

    def _check_not_fenced(self, delivery: Delivery, later: list[Delivery]) -> None:
        for other in later:
            assert other.identity == delivery.identity, f"{delivery} outlived its group"
            assert other.generation <= delivery.generation, f"{delivery} is fenced by {other}"
            if other.generation == delivery.generation and other.owner == delivery.owner:
                assert other.member_id == delivery.member_id, f"{other} replaced {delivery}"


@dataclass
class Consumer:
    """One process. `is_dead`: it was fenced, after which clients give up."""

    g: GroupDriver = field(repr=False)
    witness: Witness = field(repr=False)
    name: str
    instance: str | None = None
    version: int = 9
    protocols: Protocols = (("range", b"t"),)
    session_ms: int = 10_000
    rebalance_ms: int = 20_000
    member_id: str = ""
    generation: int = -1
    is_dead: bool = False
    is_stable: bool = False
    joining: Call[JoinAnswer] | None = None
    joined: JoinAnswer | None = None
    syncing: Call[SyncAnswer] | None = None

    # --- what it sends ---

    def send_join(self) -> None:
        self.is_stable, self.joined, self.syncing = False, None, None
        self.joining = self.g.call(f"{self.name} joins")
        self.g.send(
            Join(
                self.joining,
                self.member_id,
                self.instance if self.version >= 5 else None,
                self.name,
                "/host",
                self.session_ms,
                self.rebalance_ms,
                "consumer",
                self.protocols,
                requires_known_member_id=self.version >= 4,
                supports_skip_assignment=self.version >= 9,
            )
        )

    def send_sync(self) -> None:
        self.syncing = self.g.call(f"{self.name} syncs")
        self.g.send(
            Sync(
                self.syncing,
                self.member_id,
                self.instance,
                self.generation,
                assignments=self._assignments(),
            )
        )

    def send_old_generation(self) -> None:
        """What a delayed request of an earlier generation does: nothing.

        A groups that restarted in mid-rebalance may be in that generation again.
        """
        old = self.generation - 1
        if old == self.g.groups.describe(self.g.group_id).generation_id:
            return
        sync: Call[SyncAnswer] = self.g.call(f"{self.name} syncs generation {old}")
        self.g.send(Sync(sync, self.member_id, self.instance, old, assignments=(("x", b"1"),)))
        assert sync.answer.error is not ErrorCode.NONE
        assert self._heartbeat(old) is not ErrorCode.NONE

    def send_heartbeat(self) -> None:
        self._take(self._heartbeat(self.generation))

    def _heartbeat(self, generation: int) -> ErrorCode:
        return self.g.groups.heartbeat(
            self.g.group_id, self.member_id, self.instance, generation, self.g.now
        )

    def send_leave(self) -> None:
        self.g.send(Leave(self.g.call("leave"), (LeavingMember(self.member_id, self.instance),)))
        self.forget()

    # --- what it hears ---

    def hear(self) -> None:
        """Read the answers that have come."""
        if self.joining is not None and not self.joining.is_parked:
            answer, self.joining = self.joining.answer, None
            if answer.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                self.member_id = answer.member_id
            if answer.error is ErrorCode.NONE:
                self.joined = answer
                self.generation = answer.generation_id
            self._take(answer.error)
        if self.syncing is not None and not self.syncing.is_parked:
            synced, self.syncing = self.syncing.answer, None
            if synced.error is ErrorCode.NONE:
                self.is_stable = True
                self.witness.saw(
                    Delivery(
                        self.g.group.identity,
                        self.member_id,
                        self.instance,
                        self.generation,
                        frozenset(synced.assignment),
                    )
                )
            else:
                self.joined = None
            self._take(synced.error)

    def cooperate(self) -> None:
        """One turn of a well-behaved client."""
        self.hear()
        if self.is_dead or self.joining is not None or self.syncing is not None:
            return
        if self.is_stable:
            self.send_heartbeat()
        elif self.joined is not None:
            self.send_sync()
        else:
            self.send_join()

    def forget(self) -> None:
        """A new process: nothing is known, parked requests are lost."""
        self.member_id, self.generation = "", -1
        self.lose_calls()

    def lose_calls(self) -> None:
        """The connection is gone; the member's id and generation are still known."""
        self.joining, self.joined, self.syncing, self.is_stable = None, None, None, False

    def ghost(self) -> "Consumer":
        """This process as it is now, to be continued when everybody thinks it is gone."""
        return replace(self, name=f"ghost of {self.name}")

    def _take(self, error: ErrorCode) -> None:
        if error is ErrorCode.FENCED_INSTANCE_ID:
            self.is_dead = True
        elif error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.forget()
        elif error is not ErrorCode.NONE:
            self.is_stable = False
            self.joined = None

    def _assignments(self) -> tuple[tuple[str, bytes], ...]:
        joined = self.joined
        if joined is None or joined.leader != self.member_id or joined.skip_assignment:
            return ()
        ids = [member.member_id for member in joined.members]
        return tuple(
            (member_id, bytes(p for p in PARTITIONS if ids[p % len(ids)] == member_id))
            for member_id in ids
        )
