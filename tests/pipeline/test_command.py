"""`moldau pipeline`: its help, its errors before Spark is started, its progress."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from moldau.ops.pipeline import command, progress, session
from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.progress import Meter
from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker

Pipeline = Callable[..., subprocess.CompletedProcess[str]]


def refused(pipeline: Pipeline, *words: str, **env: str) -> str:
    """What a refused `archive` writes to standard error: one line that names the remedy."""
    done = pipeline("archive", *words, **env)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    return done.stderr


def test_help_teaches(pipeline: Pipeline) -> None:
    listed = pipeline("--help").stdout
    assert "archive" in listed
    assert "from moldau import MoldauSource" in listed
    assert 'format("moldau")' in listed
    text = pipeline("archive", "--help").stdout
    for word in ("--lake", "--topic", "--pattern", "--once", "--continuous", "--master",
                 "remote.storage.enable", "exactly\nonce", "exit code"):  # fmt: skip
        assert word in text, word
    assert pipeline().returncode == 2
    assert pipeline("archive", "--lake", "x", "--topic", "a", "--pattern", "b").returncode == 2


def test_no_broker(pipeline: Pipeline, tmp_path: Path) -> None:
    words = ("--lake", str(tmp_path), "--topic", "a", "--bootstrap")
    text = refused(pipeline, *words, "127.0.0.1:1")
    assert "no broker answers at kafka.bootstrap.servers=127.0.0.1:1" in text
    assert "moldau serve" in text
    assert "HOST:PORT" in refused(pipeline, *words, "here")


def test_no_java_and_an_old_one(pipeline: Pipeline, tmp_path: Path) -> None:
    words = ("--lake", str(tmp_path / "lake"), "--topic", "a")
    text = refused(pipeline, *words, JAVA_HOME=str(tmp_path))
    assert "has no bin/java" in text
    assert "apt install openjdk-17-jre-headless" in text
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    text = refused(pipeline, *words, JAVA_HOME=str(tmp_path))
    assert "is Java 8, Spark needs 17 or newer" in text
    text = refused(pipeline, *words, JAVA_HOME="", PATH="/nonexistent")
    assert "there is no java on the PATH" in text


def test_java_without_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = tmp_path / "bin" / "java"
    silent.parent.mkdir()
    silent.write_text("#!/bin/sh\n")
    silent.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineError, match="does not print its version"):
        session.check_java()


def test_a_lake_that_cannot_be_written(moldau: Broker, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = ("pipeline", "archive", "--lake", str(tmp_path / "file" / "lake"), "--topic", "a")
    text = Cli(moldau).refused(*words)
    assert "cannot be written" in text
    assert "give a directory in which this user may write" in text


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline) -> None:
    monkeypatch.setattr(command, "NEEDED", ("pyspark", "no_such_package"))
    text = refused(pipeline, "--lake", "x", "--topic", "a")
    assert "the pipeline needs no_such_package; install it with: pip install" in text


def test_the_command_line_does_not_need_the_extra() -> None:
    """Help and the message above must come without Spark, Arrow and the like."""
    probe = (
        "import sys, moldau.ops.pipeline.command\n"
        "print([m for m in ('pyspark', 'pyarrow', 'numpy', 'deltalake') if m in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", probe], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_progress_is_lines_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Meter("archive") as meter:
        meter.advance(1000, 5_000_000, 70)
        meter.advance(500, 1_000_000, 20)  # too soon for a line of its own
    first, last = capsys.readouterr().err.strip().splitlines()
    assert "archive: 1,000 records, 5.0 MB" in first
    assert first.endswith("70 left")
    assert "1,500 records, 6.0 MB" in last
    assert last.endswith("20 left")
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with Meter("archive") as meter:
        meter.advance(1, 1, 1)
        meter.advance(1, 1, 0)
    assert len(capsys.readouterr().err.strip().splitlines()) == 2


def test_progress_is_a_bar_on_a_terminal() -> None:
    screen = io.StringIO()
    with Meter("archive", Console(file=screen, force_terminal=True, width=160)) as meter:
        meter.advance(1000, 5_000_000, 3000)
    shown = screen.getvalue()
    assert "1,000 records, 5.0 MB" in shown
    assert "3,000 left" in shown
