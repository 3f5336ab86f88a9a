"""Numbers that people write."""

from __future__ import annotations

import pytest

from moldau.ops.console.inputs import InvalidInput, number_of, parse_number

MOST = (1 << 63) - 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("007", 7), (str(MOST), MOST), (str(MOST + 1), None), ("", None)]
    + [(text, None) for text in ("²", "٣", "-1", "+1", "1_0", " 1", "1\n", "9" * 5_000)],
)
def test_numbers_are_ascii_digits_within_bounds(text: str, expected: int | None) -> None:
    assert parse_number(text) == expected


def test_what_is_wanted_is_said_and_what_was_written_is_cut_off() -> None:
    assert number_of(" 3 ", "partitions", least=1, most=3) == 3
    for text in ("0", "4", "9" * 5_000):
        with pytest.raises(InvalidInput, match="partitions: want a whole number") as got:
            number_of(text, "partitions", least=1, most=3)
        assert len(str(got.value)) < 200
