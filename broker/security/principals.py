"""Maps the subject of a client's certificate to its principal: `ssl.principal.mapping.rules`.

The rules are a list of `RULE:pattern/replacement/[LU]` and `DEFAULT`: the first one that matches
the whole subject counts. Patterns and replacements are Java's (`$1`), read as Kafka reads them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_RULE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)|"
_SPLIT = re.compile(rf"\s*(?:{_RULE})\s*(?:,\s*|$)")
# Matches an escaped character or a group reference in a replacement.
_REFERENCE = re.compile(r"\\(.)|\$(\d)", re.DOTALL)


class _Rule(NamedTuple):
    pattern: re.Pattern[str] | None  # None: the subject as it is
    replacement: str = ""
    case: str = ""

    def apply(self, subject: str) -> str | None:
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        name = self.pattern.sub(self._expanded, subject)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name

    def _expanded(self, match: re.Match[str]) -> str:
        def expand(reference: re.Match[str]) -> str:
            if reference[1] is not None:
                return reference[1]
            group = int(reference[2])
            # A reference to a group that the pattern does not have is text, as in Kafka.
            return match[group] or "" if group <= match.re.groups else reference[0]

        return _REFERENCE.sub(expand, self.replacement)


class PrincipalRules:
    def __init__(self, text: str) -> None:
        """Raises ValueError for a rule that cannot be parsed."""
        self._rules = list(_parsed(text.strip()))

    def principal(self, subject: str) -> str | None:
        """Return `User:` and a name, or None if no rule matches and the client cannot be
        admitted."""
        for rule in self._rules:
            name = rule.apply(subject)
            if name is not None:
                return f"User:{name}"
        return None


def _parsed(text: str) -> list[_Rule]:
    rules, at = [], 0
    while at < len(text):
        match = _SPLIT.match(text, at)
        if match is None or match.end() == at:
            raise ValueError(
                f"{text[at:]!r} is not a rule: expected RULE:pattern/replacement/, the same with "
                "L or U at its end, or DEFAULT"
            )
        at = match.end()
        if match[1]:
            rules.append(_Rule(None))
        elif match[2] is not None:
            try:
                rules.append(_Rule(re.compile(match[2]), match[3], match[4]))
            except re.error as error:
                raise ValueError(f"the pattern {match[2]!r} cannot be read: {error}") from None
    if not rules:
        raise ValueError("there is no rule: leave it unset for DEFAULT")
    return rules
