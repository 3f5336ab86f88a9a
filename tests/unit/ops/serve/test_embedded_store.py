"""The embedded store: where its server comes from, and what it says when it ends."""

from pathlib import Path

import pytest

from moldau.broker.settings.processes import ConfigError
from moldau.ops.serve import embedded_store


def test_the_servers_last_words_are_its_logs_last_line(tmp_path: Path) -> None:
    log = tmp_path / "store.log"
    assert "cannot be read: No such file" in embedded_store.last_log_line(log)
    log.write_text("x" * 10_000 + "\nfirst\nlast\n")
    assert embedded_store.last_log_line(log) == f"last (in {log})"


def test_without_a_server_for_this_platform_the_remedy_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"no embedded store for this platform .* --redis"):
        embedded_store.server_binary()
