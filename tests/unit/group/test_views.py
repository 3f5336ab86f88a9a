"""DescribeGroups and ListGroups: behaviour 2.24."""

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.group.offsets import new_commit
from moldau.broker.group.views import GroupListing, MemberView, list_groups
from tests.support.drivers.group_driver import GroupDriver


def test_2_24_stable_shows_metadata_and_assignments() -> None:
    g = GroupDriver()
    options = {"protocols": (("range", b"meta"),), "instance": "i", "client_host": "/10.0.0.7"}
    g.form("a", options={"a": options})
    view = g.group.describe()
    assert view.members == (MemberView(g.id_of("a"), "i", "a", "/10.0.0.7", b"meta", b"a"),)
    assert (view.state, view.protocol_type, view.protocol_name) == ("Stable", "consumer", "range")
    assert view.leader == g.id_of("a")
    assert view.generation_id == 1
    assert view.identity == g.group.identity


def test_2_24_otherwise_it_does_not() -> None:
    g = GroupDriver()
    g.form("a", "b")
    g.join("a")
    for state in ("PreparingRebalance", "CompletingRebalance"):
        view = g.group.describe()
        assert view.state == state
        assert view.protocol_type == "consumer"
        assert view.protocol_name == ""
        assert [(m.client_id, m.metadata, m.assignment) for m in view.members] == [
            ("a", b"", b""),
            ("b", b"", b""),
        ]
        g.join("b")


def test_2_24_an_unknown_group_is_dead() -> None:
    view = GroupDriver().groups.describe("unknown")
    assert (view.group_id, view.state, view.members) == ("unknown", "Dead", ())


@pytest.fixture
def two_groups() -> GroupDriver:
    """Stable `g`, and `simple`, which only has offsets."""
    g = GroupDriver()
    g.form("a")
    g.group_id, g.stored = "simple", None  # the driver's store holds one group
    assert g.check_commit() is ErrorCode.NONE
    g.commit("t", 0, new_commit(1, g.now))
    return g


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ([], [], ["g", "simple"]),
        (["stable"], [], ["g"]),
        (["STABLE", "eMpTy"], [], ["g", "simple"]),
        (["preparingrebalance"], [], []),
        ([], ["Classic"], ["g", "simple"]),
        ([], ["consumer"], []),
        (["Empty"], ["consumer", "CLASSIC"], ["simple"]),
        (["no such state"], [], []),
    ],
)
def test_2_24_filters_ignore_case(
    two_groups: GroupDriver, states: list[str], types: list[str], found: list[str]
) -> None:
    listed = list_groups(two_groups.groups.by_id.values(), states, types)
    assert [listing.group_id for listing in listed] == found


def test_2_24_simple_groups_have_an_empty_protocol_type(two_groups: GroupDriver) -> None:
    listed = list_groups(two_groups.groups.by_id.values())
    assert listed == [
        GroupListing("g", "consumer", two_groups.groups.by_id["g"].state, "classic"),
        GroupListing("simple", "", two_groups.group.state, "classic"),
    ]
