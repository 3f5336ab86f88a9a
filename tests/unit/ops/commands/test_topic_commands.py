"""The pure parts of `moldau topics`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.errors import KafkaError
from moldau.broker.topics.topics import check_name
from moldau.ops.cli import main
from moldau.ops.operations.adoption import name_for


@pytest.mark.parametrize(
    ("stream", "topic"),
    [
        ("orders", "orders"),
        ("sensors:raw", "sensors-raw"),
        ("a::b//c", "a-b-c"),
        ("{tenant}:x", "tenant-x"),
        ("orders:{partition}", "orders"),
        ("{partition}:orders", "orders"),
        ("žluťoučký", "lu-ou-k"),
        ("..", ""),
        (":", ""),
        ("{partition}", ""),
    ],
)
def test_a_topic_is_named_after_its_stream(stream: str, topic: str) -> None:
    assert name_for(stream) == topic


@given(st.text(max_size=300))
def test_any_name_made_of_a_key_is_legal(stream: str) -> None:
    name = name_for(stream)
    if name:
        check_name(name)
    else:
        with pytest.raises(KafkaError):
            check_name(stream.replace("{partition}", "").strip("-"))


@pytest.mark.parametrize("bits", ["0", "21", "x", "-1"])
def test_bits_are_1_to_20(bits: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["topics", "adopt", "--stream", "s", "--bits", bits])
    assert left.value.code == 2
    assert "from 1 to 20" in capsys.readouterr().err
