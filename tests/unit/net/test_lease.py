"""How long a process may serve, in virtual time."""

from moldau.broker.net.lease import Lease, boot_ns

SECOND = 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 100 * SECOND

    def __call__(self) -> int:
        return self.now


def test_nobody_is_served_before_the_lease_was_granted() -> None:
    assert Lease(9_000, Clock()).is_over()


def test_it_ends_before_it_does_in_the_store() -> None:
    clock = Clock()
    lease = Lease(9_000, clock)
    sent = lease.now()
    clock.now += 2 * SECOND  # the reply took that long
    lease.renewed(sent)
    clock.now = sent + 8 * SECOND
    assert not lease.is_over()
    clock.now = sent + 81 * SECOND // 10
    assert lease.is_over()
    assert lease.left_s == 0


def test_a_reply_that_comes_late_grants_nothing() -> None:
    clock = Clock()
    lease = Lease(9_000, clock)
    sent = lease.now()
    clock.now += 20 * SECOND  # the process was stopped
    lease.renewed(sent)
    assert lease.is_over()


def test_replies_out_of_order_do_not_shorten_it() -> None:
    clock = Clock()
    lease = Lease(9_000, clock)
    lease.renewed(clock.now + SECOND)
    lease.renewed(clock.now)
    assert lease.left_s == 9.1


def test_one_that_is_lost_is_over_at_once() -> None:
    clock = Clock()
    lease = Lease(9_000, clock)
    lease.renewed(clock.now)
    assert not lease.was_over
    lease.lose()
    assert lease.was_over
    assert lease.is_over()


def test_the_clock_of_the_machine_runs() -> None:
    assert 0 < boot_ns() <= boot_ns()
