"""The pure parts of `moldau groups` and of what it shares with `moldau topics`."""

from __future__ import annotations

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from hypothesis import given
from hypothesis import strategies as st

from moldau.ops.cli import main
from moldau.ops.command_line import print_table, printable, size_text
from moldau.ops.operations.groups import assignment_of
from moldau.ops.operations.reset_offsets import parse_datetime, parse_topic


@given(
    st.dictionaries(st.text(max_size=20), st.lists(st.integers(0, 1000))),
    st.binary(max_size=5),
    st.integers(0, 3),
)
def test_assignments_as_clients_write_them(
    topics: dict[str, list[int]], user_data: bytes, version: int
) -> None:
    written = ConsumerProtocolMemberAssignment(version, list(topics.items()), user_data).encode()
    expected = {topic: sorted(numbers) for topic, numbers in topics.items() if numbers}
    assert assignment_of(written) == expected
    # Nor is half of one taken for a whole one: only the user data may be missing.
    assert assignment_of(written[:5]) is None


@given(st.binary(max_size=60))
def test_any_bytes_are_an_assignment_or_not(data: bytes) -> None:
    found = assignment_of(data)
    assert found is None or all(isinstance(topic, str) for topic in found)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
        ("1970-01-01T00:00:01", 1000),  # UTC, whatever the machine's zone is
        ("1970-01-01T00:00:00.0001", 1),  # up: nothing before the time
    ],
)
def test_times(text: str, milliseconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert parse_datetime(text) == milliseconds


@pytest.mark.parametrize("text", ["", "soon", "1969-12-31", "2026-13-01"])
def test_not_times(text: str) -> None:
    with pytest.raises(ValueError, match="want a time"):
        parse_datetime(text)


def test_topics_with_and_without_partitions() -> None:
    assert parse_topic("a") == ("a", None)
    assert parse_topic("a:0,2") == ("a", frozenset({0, 2}))
    for wrong in ("", ":1", "a:", "a:x", "a:1,", "a:-1"):
        with pytest.raises(ValueError, match="want TOPIC"):
            parse_topic(wrong)


def test_piped_tables_are_plain_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "count"), [("x" * 300, 5), ("[red]y\x1b", None)])
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "count"]
    assert first == "x" * 300 + "      5"
    assert second.split() == ["[red]y\\x1b", "-"]


def test_on_a_terminal_ids_wrap_and_are_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": "40", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    print_table(("member",), [("m" * 100,), ("[red]y",)])
    out = capsys.readouterr().out
    assert out.count("m") >= 100
    assert "…" not in out
    assert "[red]y" in out


def test_text_for_people() -> None:
    assert printable("é\n\x1b") == "é\\n\\x1b"
    assert [size_text(size) for size in (0, 1023, 1536, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 TiB",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["topics"],
        *(["topics", action] for action in ("list", "describe", "create", "delete", "alter")),
        ["groups"],
        *(["groups", action] for action in ("list", "describe", "delete", "reset-offsets")),
    ],
    ids=" ".join,
)
def test_help_teaches_with_examples(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([*words, "--help"])
    assert left.value.code == 0
    assert f"examples:\n  moldau {words[0]} {(words + ['list'])[1]}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        (["--to-datetime", "soon"], "want a time"),
        (["--to-latest", "--to-earliest"], "not allowed with"),
        (["--to-latest", "--dry-run", "--execute"], "not allowed with"),
        (["--to-offset", "-1"], "offsets begin at 0"),
        (["--shift-by", "x"], "whole number"),
        ([], "--to-earliest"),
    ],
)
def test_goals_that_make_no_sense_are_wrong_usage(
    goal: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["groups", "reset-offsets", "g", "--all-topics", *goal])
    assert left.value.code == 2
    assert message in capsys.readouterr().err


def test_a_command_without_an_action_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["groups"]) == 2
    assert "reset-offsets" in capsys.readouterr().out


def test_a_state_that_no_group_has_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["groups", "list", "--state", "Sleeping"])
    assert left.value.code == 2
    assert "choose from Empty, Stable" in capsys.readouterr().err
