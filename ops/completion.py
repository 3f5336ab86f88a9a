"""`moldau completion`: a script that completes commands and options in a shell.

The script is made of the command's own parsers, so it knows every command and option of this
version. Print it again after an upgrade.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish")

DESCRIPTION = "Print a script that completes commands and options of moldau in your shell."

EXAMPLES = """\
examples:
  bash   moldau completion bash > ~/.local/share/bash-completion/completions/moldau
  zsh    moldau completion zsh > ~/.zfunc/_moldau     (~/.zfunc has to be in $fpath)
  fish   moldau completion fish > ~/.config/fish/completions/moldau.fish
  now    eval "$(moldau completion bash)"             for this bash only
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(arguments: argparse.Namespace) -> int:
    import shtab

    from moldau.ops.cli import COMMANDS, build_parser

    parser = build_parser(COMMANDS)
    files = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}
    for action in _actions(parser):
        if action.metavar in files:
            action.complete = files[action.metavar]  # type: ignore[attr-defined]
    print(shtab.complete(parser, arguments.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every argument of the parser and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from _actions(subparser)
