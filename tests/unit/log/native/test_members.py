"""Which member of which group a Fetch comes from, where only one is possible."""

from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.log.native.group_assignments import (
    AssignedMember,
    Members,
    Owner,
    decode_members,
    encode_members,
)

PLACE = ("orders", 0)

readers = st.lists(
    st.builds(
        AssignedMember,
        st.sampled_from(["m1", "m2", "m3"]),
        st.sampled_from(["app", "rdkafka"]),
        st.sampled_from(["10.0.0.1", "10.0.0.2"]),
        st.lists(st.tuples(st.sampled_from(["orders", "t"]), st.integers(0, 1)), unique=True).map(
            tuple
        ),
    ),
    max_size=3,
    unique_by=lambda reader: reader.member_id,
).map(tuple)


def one(
    member: str, *places: tuple[str, int], client: str = "app", host: str = "h"
) -> AssignedMember:
    return AssignedMember(member, client, host, places or (PLACE,))


def test_the_only_one_it_can_be() -> None:
    members = Members()
    members.update("g", (one("m1"), one("m2", ("orders", 1))))

    assert members.owner(PLACE, "app", "h") == Owner("g", "m1")
    assert members.owner(("orders", 1), "app", "h") == Owner("g", "m2")


def test_no_member_it_can_be() -> None:
    members = Members()
    members.update("g", (one("m1"),))

    assert members.owner(PLACE, "other", "h") is None
    assert members.owner(PLACE, "app", "elsewhere") is None
    assert members.owner(("orders", 1), "app", "h") is None


def test_two_groups_with_one_client_id_until_one_of_them_goes() -> None:
    members = Members()
    members.update("g", (one("m1"),))
    members.update("h", (one("m2"),))
    assert members.owner(PLACE, "app", "h") is None

    members.update("g", ())

    assert members.owner(PLACE, "app", "h") == Owner("h", "m2")


def test_a_rebalance_moves_a_partition() -> None:
    members = Members()
    members.update("g", (one("m1"),))

    members.update("g", (one("m2"), one("m1", ("orders", 1))))

    assert members.owner(PLACE, "app", "h") == Owner("g", "m2")
    assert members.readers("g")[0].member_id == "m2"


@given(readers)
def test_what_is_encoded_is_decoded(some: tuple[AssignedMember, ...]) -> None:
    assert decode_members(encode_members(some)) == some


@given(st.lists(st.tuples(st.sampled_from("abc"), readers), max_size=8))
def test_only_the_last_that_was_said_of_a_group_counts(
    said: list[tuple[str, tuple[AssignedMember, ...]]],
) -> None:
    members, replaced = Members(), Members()
    for group, some in said:
        members.update(group, some)
    last = dict(said)
    for group, some in said[:2]:
        replaced.update(group, some)
    replaced.replace(last)

    for place in (("orders", 0), ("orders", 1), ("t", 0), ("t", 1)):
        for client in ("app", "rdkafka"):
            for host in ("10.0.0.1", "10.0.0.2"):
                could = [
                    Owner(group, reader.member_id)
                    for group, some in last.items()
                    for reader in some
                    if place in reader.partitions
                    and (reader.client_id, reader.host) == (client, host)
                ]
                wanted = could[0] if len(could) == 1 else None
                assert members.owner(place, client, host) == wanted
                assert replaced.owner(place, client, host) == wanted
