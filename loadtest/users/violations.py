"""Records that were lost, duplicated, reordered or damaged, as found by this process.

With several locust processes the master collects those of the others at the end of the run.
"""

from __future__ import annotations

MAX_VIOLATIONS = 20  # of one process: in a broken log every record would be one

violations: list[str] = []


def add_violation(violation: str) -> bool:
    """Keep it for the verdict; False: there are enough already."""
    if len(violations) >= MAX_VIOLATIONS:
        return False
    violations.append(violation)
    return True
