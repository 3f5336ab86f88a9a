"""The `moldau` command against a broker of the tests: as a process of its own, like a user's.

cli = Cli(broker)
cli("topics", "list")                  # -> CompletedProcess, whatever its exit code
cli.json("groups", "describe", "g")    # -> the document; fails unless the exit code is 0
"""

import subprocess
from typing import Any

from tests.support.brokers.loaded import run_loaded_to_end
from tests.support.brokers.running import (
    MOLDAU,
    Broker,
    as_json,
    can_be_forked,
    clean_environment,
)


class Cli:
    def __init__(self, broker: Broker) -> None:
        self.env = {
            **clean_environment(),
            "MOLDAU_BOOTSTRAP": broker.bootstrap,
            "MOLDAU_RUNTIME_DIR": str(broker.directory / "run"),
        }

    def __call__(
        self, *words: str, typed: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end; `typed` is its standard input, `env` changes its environment."""
        whole_env = {**self.env, **env}
        if can_be_forked(MOLDAU, env):
            return run_loaded_to_end([*MOLDAU[1:], *words], env=whole_env, typed=typed, timeout=60)
        return subprocess.run(
            [*MOLDAU, *words],
            env=whole_env,
            input=typed,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def json(self, *words: str, **env: str) -> Any:
        done = self(*words, "--json", **env)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return as_json(done.stdout)

    def refused(self, *words: str, typed: str = "") -> str:
        """The message of a command that must fail with exit code 1, and without a traceback."""
        done = self(*words, typed=typed)
        assert done.returncode == 1, done.stdout
        assert "Traceback" not in done.stderr
        return done.stderr


class OperatorCli(Cli):
    """The same over the broker's unix sockets, without an address and a login."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        del self.env["MOLDAU_BOOTSTRAP"]
        self.env["MOLDAU_PORT"] = str(broker.port)
