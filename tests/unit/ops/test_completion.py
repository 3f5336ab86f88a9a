"""`moldau completion`: the scripts are valid, and bash completes what the command line knows."""

import shutil
import subprocess

import pytest

from moldau.ops.cli import COMMANDS, main
from moldau.ops.completion import SHELLS

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")

COMPLETE = """
{script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_shtab_moldau 2>/dev/null; printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def script_for(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_for_every_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = script_for(shell, capsys)
    assert all(command in script for command in COMMANDS)
    assert "reset-offsets" in script
    assert "store-maxmemory" in script


@needs_bash
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("moldau st", ["status"]),
        ("moldau topics cr", ["create"]),
        ("moldau transactions find", ["find-hanging"]),
        ("moldau topics create --part", ["--partitions"]),
        ("moldau serve --store-f", ["--store-fsync"]),
        ("moldau completion z", ["zsh"]),
    ],
)
def test_bash_completes(
    words: str, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = COMPLETE.format(script=script_for("bash", capsys), words=words)
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected
