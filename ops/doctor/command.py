"""`moldau doctor`: is this machine, this store, this configuration fit for a broker?"""

from __future__ import annotations

import argparse
import os

import msgspec

from moldau.broker.settings.loading import load_settings
from moldau.broker.settings.processes import ConfigError, ServeSettings
from moldau.broker.tls.context import check_tls
from moldau.ops.command_line import print_json, printable
from moldau.ops.doctor.checks import Finding, Level, faults, findings
from moldau.ops.doctor.gather import gather
from moldau.ops.serve.command import STANDBY_ALONE, add_options
from moldau.ops.serve.exposure import check_exposure

DESCRIPTION = """\
Look at this machine, the store and the settings, and say what would keep a broker from starting,
from being reached, or from keeping what it acknowledges. It changes nothing.
It takes the options of serve, its file and its environment; for a broker that runs on the same
port it also measures for 2 s what topics are written to.
"""

EXAMPLES = """\
examples:
  moldau doctor                                    as `moldau serve` would start
  moldau doctor --config /etc/moldau/moldau.toml
  moldau doctor --redis redis://10.0.0.5:6379 --host 0.0.0.0 --advertised-host broker.example.com
  moldau doctor --json                             for scripts

exit codes: 0 no fault (warnings are none), 1 at least one fault, 2 wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    found: list[Finding] = []
    try:
        settings = load_settings(vars(arguments), os.environ, arguments.config)
    except ConfigError as error:
        found.append(
            Finding("settings", Level.FAULT, str(error), "correct it: serve refuses it too")
        )
    else:
        found += settings_findings(settings)
        found += findings(gather(settings, os.environ), settings)
    if arguments.json:
        print_json({"faults": faults(found), "findings": msgspec.to_builtins(found)})
    else:
        print_findings(found)
    return 1 if faults(found) else 0


def print_findings(found: list[Finding]) -> None:
    """A line for each, the faults last, and below it what to do."""
    levels = list(Level)
    widths = max(map(len, levels)), max((len(each.check) for each in found), default=0)
    for each in sorted(found, key=lambda one: levels.index(one.level)):
        head = f"{each.level:{widths[0]}}  {each.check:{widths[1]}}  "
        print(head + printable(each.finding))
        if each.remedy:
            print(" " * len(head) + "-> " + printable(each.remedy))


def settings_findings(settings: ServeSettings) -> list[Finding]:
    """What `serve` refuses for its settings alone."""
    found = []
    try:
        check_exposure(settings.listening, insecure=settings.insecure)
    except ConfigError as error:
        found.append(Finding("settings", Level.FAULT, str(error), "see Security in the manual"))
    if settings.standby and settings.redis is None:
        found.append(Finding("settings", Level.FAULT, STANDBY_ALONE, "leave --standby out"))
    for listener in settings.listening:
        if listener.tls is None:
            continue
        try:
            check_tls(listener.tls)
        except ConfigError as error:
            remedy = "correct the files of the certificate"
            if settings.secure:
                remedy = "start once: moldau serve --secure makes them"
            found.append(Finding(f"TLS {listener.name}", Level.FAULT, str(error), remedy))
    return found
