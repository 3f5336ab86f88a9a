"""Warnings before a certificate expires."""

from moldau.broker.tls.expiry_warnings import DAY, ExpiryWarnings

END = 1_800_000_000.0


def test_each_distance_is_warned_of_once_and_then_every_day() -> None:
    warnings = ExpiryWarnings()
    days = [day / 4 for day in range(40 * 4, -3 * 4, -1)]
    warned = [left for left in days if warnings.is_due(END, END - left * DAY)]
    assert warned == [30, 14, 7, 1, 0, -1, -2]


def test_a_start_within_the_last_days_warns_once_at_once() -> None:
    warnings = ExpiryWarnings()
    assert [warnings.is_due(END, END - 3 * DAY + second) for second in range(3)] == [
        True,
        False,
        False,
    ]


def test_a_renewed_certificate_begins_again() -> None:
    warnings = ExpiryWarnings()
    assert warnings.is_due(END, END - DAY)
    warnings.renewed()
    assert not warnings.is_due(END + 90 * DAY, END - DAY)
    assert warnings.is_due(END + 90 * DAY, END + 89 * DAY)
