"""Prints what `serve --check` found."""

from __future__ import annotations

import msgspec

from moldau.broker.process import BOOT_FAILED
from moldau.broker.settings.processes import ServeSettings
from moldau.ops.command_line import print_facts, print_json
from moldau.ops.commands.backup_progress import ProgressLine
from moldau.ops.serve.check_start import StartReport, check_start


def report_start(settings: ServeSettings, *, as_json: bool) -> int:
    """Print it; returns the exit code."""
    with ProgressLine("read") as line:
        report = check_start(settings, line.waiting("loading the store"))
    if as_json:
        print_json({"would_start": report.would_start, **msgspec.to_builtins(report)})
    else:
        _print(report)
    return 0 if report.would_start else BOOT_FAILED


def _print(report: StartReport) -> None:
    print_facts(
        {
            "version": report.version,
            "store": report.store,
            "format": report.format or "none yet",
            "ports": ", ".join(map(str, report.ports)),
            "settings": ", ".join(f"{name}={value}" for name, value in report.settings.items())
            or "the defaults",
        }
    )
    print()
    for change in report.changes:
        print(f"- {change}")
    for problem in report.problems:
        print(f"PROBLEM: {problem}")
    if report.would_start:
        print("it would start" if report.changes else "it would start, and change nothing")
    else:
        print("IT WOULD NOT START")
