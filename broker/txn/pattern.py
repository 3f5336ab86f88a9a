"""Regular expressions for transactional ids (ListTransactions v2), in linear time.

Kafka uses RE2. Python's `re` backtracks: a pattern such as `(a+)+b` would stop the worker, and with
it every client, for hours. So patterns are run here as sets of states, which takes time in
proportion to pattern times id, in steps: `matching` is a generator, and whoever runs it serves
others in between.

What RE2 has and is common: alternatives, groups, classes, `. ^ $ * + ? {n,m}`, `\\d \\w \\s \\b`,
`\\Q…\\E`, `(?i)` at the beginning. The rest, and what RE2 does not have either (back-references,
looking around), is `InvalidPattern`, as are patterns of more than 256 characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import NamedTuple, TypeAlias

MAX_LENGTH = 256
MAX_REPEAT = 1000  # as in RE2
MAX_STATES = 10_000
STEPS_AT_ONCE = 10_000  # of a few tenths of a microsecond each

Test = Callable[[str], bool]
_COUNTS = re.compile(r"\{([0-9]{1,4})(,([0-9]{1,4})?)?\}")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


class InvalidPattern(ValueError):
    """It is no regular expression, or not one that is understood."""


def _is_word(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")


_CLASSES: dict[str, Test] = {
    "d": lambda c: "0" <= c <= "9",
    "w": _is_word,
    "s": lambda c: c in "\t\n\f\r ",
}
# Where they hold, by the characters before and after; "" at the ends.
_ASSERTIONS: dict[str, Callable[[str, str], bool]] = {
    "^": lambda before, after: not before,
    "A": lambda before, after: not before,
    "$": lambda before, after: not after,
    "z": lambda before, after: not after,
    "b": lambda before, after: _is_word(before or " ") != _is_word(after or " "),
    "B": lambda before, after: _is_word(before or " ") == _is_word(after or " "),
}


class Char(NamedTuple):
    test: Test


class Assertion(NamedTuple):
    holds: Callable[[str, str], bool]


class Sequence(NamedTuple):
    parts: list[Node]


class Choice(NamedTuple):
    parts: list[Node]


class Repeat(NamedTuple):
    part: Node
    least: int
    most: int | None


Node: TypeAlias = Char | Assertion | Sequence | Choice | Repeat


class State(NamedTuple):
    """Goes on to `to`: after a character, where an assertion holds, or (neither) at once."""

    to: tuple[int, ...] = ()
    test: Test | None = None
    holds: Callable[[str, str], bool] | None = None


class Pattern:
    """Matches whole ids, as Kafka's does. Raises InvalidPattern."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise InvalidPattern(f"more than {MAX_LENGTH} characters")
        self._states = [State()]  # the first one is the end
        self._start = self._lay_out(_Parser(text).parse(), 0)

    def matching(self, text: str) -> Generator[None, None, bool]:
        """Returns whether it matches; yields every few milliseconds."""
        steps = 0
        current = self._reached([self._start], "", text[:1])
        for at, character in enumerate(text):
            following: list[int] = []
            for number in current:
                test = self._states[number].test
                if test is not None and test(character):
                    following += self._states[number].to
            current = self._reached(following, character, text[at + 1 : at + 2])
            if not current:
                return False
            steps += len(current) + 1
            if steps >= STEPS_AT_ONCE:
                steps = 0
                yield
        return 0 in current

    def _reached(self, numbers: list[int], before: str, after: str) -> set[int]:
        """Those states, and all that follow without a character."""
        reached: set[int] = set()
        while numbers:
            number = numbers.pop()
            if number in reached:
                continue
            reached.add(number)
            state = self._states[number]
            if state.test is None and (state.holds is None or state.holds(before, after)):
                numbers += state.to
        return reached

    def _lay_out(self, node: Node, after: int) -> int:
        """Make states for a part of the pattern, which go on to `after`; returns the first."""
        match node:
            case Char(test):
                return self._add(State((after,), test=test))
            case Assertion(holds):
                return self._add(State((after,), holds=holds))
            case Sequence(parts):
                for part in reversed(parts):
                    after = self._lay_out(part, after)
                return after
            case Choice(parts):
                return self._add(State(tuple([self._lay_out(part, after) for part in parts])))
            case Repeat(part, least, most):
                if most is None:
                    loop = self._add(State())
                    self._states[loop] = State((self._lay_out(part, loop), after))
                    after = loop
                else:
                    end = after
                    for _ in range(most - least):
                        after = self._add(State((self._lay_out(part, after), end)))
                for _ in range(least):
                    after = self._lay_out(part, after)
                return after

    def _add(self, state: State) -> int:
        if len(self._states) >= MAX_STATES:
            raise InvalidPattern("too many repetitions")
        self._states.append(state)
        return len(self._states) - 1


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._folds = False  # upper and lower case are the same

    def parse(self) -> Node:
        if self._skip("(?i)"):
            self._folds = True
        node = self._choice()
        if self._at < len(self._text):
            raise InvalidPattern("a closing parenthesis without an opening one")
        return node

    # --- characters of the pattern ---

    def _skip(self, text: str) -> bool:
        is_there = self._text.startswith(text, self._at)
        if is_there:
            self._at += len(text)
        return is_there

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise InvalidPattern("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _is_at(self, characters: str) -> bool:
        return self._at < len(self._text) and self._text[self._at] in characters

    # --- parts ---

    def _choice(self) -> Node:
        parts = [self._sequence()]
        while self._skip("|"):
            parts.append(self._sequence())
        return Choice(parts)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and not self._is_at("|)"):
            if self._skip("\\Q"):
                quoted, _, _ = self._text[self._at :].partition("\\E")
                self._at = min(self._at + len(quoted) + 2, len(self._text))
                parts += [self._one(character) for character in quoted]
                if quoted:
                    parts[-1] = self._repeated(parts[-1])
            else:
                parts.append(self._repeated(self._atom()))
        return Sequence(parts)

    def _atom(self) -> Node:
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return Char(self._class())
            case ".":
                return Char(lambda c: c != "\n")
            case "^" | "$":
                return Assertion(_ASSERTIONS[character])
            case "*" | "+" | "?":
                raise InvalidPattern(f"nothing to repeat before {character}")
            case "\\":
                name = self._next()
                if name in _ASSERTIONS and name.isalpha():
                    return Assertion(_ASSERTIONS[name])
                escaped = self._escaped(name)
                return self._one(escaped) if isinstance(escaped, str) else Char(escaped)
        return self._one(character)

    def _one(self, character: str) -> Char:
        if self._folds:
            folded = character.casefold()
            return Char(lambda c: c.casefold() == folded)
        return Char(lambda c: c == character)

    def _group(self) -> Node:
        if self._skip("?P<") or self._skip("?<"):
            name, closed, _ = self._text[self._at :].partition(">")
            if not closed or not name.isidentifier():
                raise InvalidPattern("a group without a name")
            self._at += len(name) + 1
        elif not self._skip("?:") and self._is_at("?"):
            raise InvalidPattern("a kind of group that is not known")
        inside = self._choice()
        if not self._skip(")"):
            raise InvalidPattern("a parenthesis is not closed")
        return inside

    def _repeated(self, part: Node) -> Node:
        counts = self._counts()
        if counts is None:
            return part
        least, most = counts
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            raise InvalidPattern("a repetition that is too large, or the wrong way round")
        self._skip("?")  # whether as many or as few as possible makes no difference here
        if self._counts() is not None:
            raise InvalidPattern("a repetition of a repetition")
        return Repeat(part, least, most)

    def _counts(self) -> tuple[int, int | None] | None:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._skip(sign):
                return counts
        found = _COUNTS.match(self._text, self._at)
        if found is None:  # also a brace that only stands for itself
            return None
        self._at = found.end()
        least = int(found[1])
        if found[2] is None:
            return least, least
        return least, int(found[3]) if found[3] else None

    def _escaped(self, name: str) -> str | Test:
        """What follows a backslash: one character, or a test for several."""
        if name.lower() in _CLASSES:
            test = _CLASSES[name.lower()]
            return test if name.islower() else lambda c: not test(c)
        if name == "x":
            digits = self._next() + self._next()
            try:
                return chr(int(digits, 16))
            except ValueError:
                raise InvalidPattern("\\x without two digits") from None
        if name in _ESCAPED:
            return _ESCAPED[name]
        if name.isalnum():
            raise InvalidPattern(f"\\{name} is not known")
        return name

    def _class(self) -> Test:
        negated = self._skip("^")
        tests: list[Test] = []
        is_first = True
        while is_first or not self._skip("]"):
            is_first = False
            if self._is_at("[") and self._text.startswith("[:", self._at):
                raise InvalidPattern("named classes are not known")
            first = self._member()
            if not isinstance(first, str):
                tests.append(first)
                continue
            last: str | Test = first
            if self._is_at("-") and not self._text.startswith("-]", self._at):
                self._next()
                last = self._member()
            if not isinstance(last, str) or last < first:
                raise InvalidPattern("a range that is none")
            tests.append(self._range(first, last))
        return lambda c: any(test(c) for test in tests) != negated

    def _member(self) -> str | Test:
        character = self._next()
        return self._escaped(self._next()) if character == "\\" else character

    def _range(self, first: str, last: str) -> Test:
        if self._folds:
            return lambda c: first <= c.lower() <= last or first <= c.upper() <= last
        return lambda c: first <= c <= last
