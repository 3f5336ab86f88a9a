"""The numbers of transactions: 31 bits, from 1, compared as serial numbers (RFC 1982).

A producer at 1,000 transactions a second wraps after 25 days. Two numbers that are compared belong
to transactions of one transactional id that are near each other, so half the circle is plenty.
"""

from __future__ import annotations

NO_NUMBER = 0
"""The number before the first transaction. Every other number is after it."""
LAST = 2**31 - 1
_HALF = 2**30


def next_number(number: int) -> int:
    return 1 if number == LAST else number + 1


def is_after(a: int, b: int) -> bool:
    """True if transaction `a` began after transaction `b`.

    The circle has 2^31 - 1 numbers, as 0 is not one of them: the distance from b to a is at most
    half.
    """
    if b == NO_NUMBER:
        return a != NO_NUMBER
    if a == NO_NUMBER:
        return False
    return 0 < (a - b) % LAST < _HALF
