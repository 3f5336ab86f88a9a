"""What an engine does with the image, without an engine: the broker in namespaces of its own.

Read-only root, a volume at /data, another user, no capabilities, its own network, process 1. The
file system is this machine's, and what the image has in /opt/moldau is an environment that the
wheel is installed in; everything else is read from the Containerfile.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from tests.support.brokers.running import ROOT, wait_until

TOOLS = ("unshare", "nsenter", "setpriv", "ip", "mount")
# $1: the volume, $2: the interpreter's directory, $3: a directory above it that only root may
# enter, $4: an empty directory, $5: the user's number, $6: whose the volume is; then the program.
ENTER = """
set -e
ip link set lo up
if [ -n "$3" ]; then
    mount --bind "$2" "$4"
    mount -t tmpfs -o mode=755 none "$3"
    mkdir -p "$2"
    mount --bind "$4" "$2"
    mount -o remount,ro "$3"
fi
mount -o remount,bind,ro /
mount -t tmpfs -o "$6" none "$1"
cd "$1"
user=$5
shift 6
exec setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --bounding-set=-all \
    --inh-caps=-all -- "$@"
"""


def why_not() -> str | None:
    """Why no container can be made here; None if one can."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"{', '.join(missing)} not found"
    allowed = subprocess.run(
        ["unshare", "-mnpf", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True
    )
    return None if allowed.returncode == 0 else f"no namespaces here: {allowed.stderr.strip()}"


class Image:
    """The last stage of the Containerfile."""

    def __init__(self, opt: Path, volume: Path) -> None:
        """`opt` stands for /opt/moldau, `volume` for /data."""
        text = (ROOT / "ops/Containerfile").read_text().replace("\\\n", " ")
        stage = re.split(r"^FROM .*$", text, flags=re.MULTILINE)[-1]
        moved = stage.replace("/opt/moldau", str(opt)).replace("/data", str(volume))
        self._lines = [line.split(maxsplit=1) for line in moved.splitlines() if line.strip()]
        self.user = self._one("USER").partition(":")[0]
        self.environment = dict(
            word.split("=", 1) for line in self._all("ENV") for word in shlex.split(line)
        )
        self.program = json.loads(self._one("ENTRYPOINT")) + json.loads(self._one("CMD"))
        self.health = json.loads(self._one("HEALTHCHECK").partition("CMD ")[2])
        self.ports = set(self._one("EXPOSE").split())

    def _all(self, word: str) -> list[str]:
        return [rest for first, rest in self._lines if first == word]

    def _one(self, word: str) -> str:
        (found,) = self._all(word)
        return found


class Container:
    """A running one."""

    def __init__(self, image: Image, process: psutil.Process, log: Path) -> None:
        self._image = image
        self.process = process
        self._log = log

    def log(self) -> str:
        return self._log.read_text()

    def execute(self, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program inside, as `podman exec` does."""
        user = self._image.user
        inside = ["nsenter", "-m", "-n", "-p", "-t", str(self.process.pid), "--wd", "--"]
        as_user = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs"]
        return subprocess.run(
            [*inside, *as_user, *words], env=self._image.environment, input=text,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def health(self) -> subprocess.CompletedProcess[str]:
        return self.execute(*self._image.health)


@contextmanager
def run_container(
    image: Image, directory: Path, opt: Path, volume: Path, *, owner: str = ""
) -> Iterator[Container]:
    """A container that is stopped at the end, if it runs. `owner`: mount options of the volume,
    which is the user's own by default."""
    kept = directory / "interpreter"
    kept.mkdir()
    prefix = Path(sys.base_prefix)
    closed = next((str(one) for one in reversed(prefix.parents) if not one.stat().st_mode & 1), "")
    command = [
        "unshare", "-mnpf", "--mount-proc", "--propagation", "private",
        "sh", "-c", ENTER, "sh", str(volume), str(prefix), closed, str(kept), image.user,
        owner or f"uid={image.user},gid={image.user},mode=700",
        *_found(image.program, opt),
    ]  # fmt: skip
    path = f"{image.environment['PATH']}:/usr/sbin:/sbin"  # of the tools that enter it
    log = directory / "log"
    with log.open("w") as output:
        outside = subprocess.Popen(
            command, env=image.environment | {"PATH": path},
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        wait_until(
            lambda: "moldau ready" in log.read_text() or outside.poll() is not None, 90, "it starts"
        )
        assert outside.poll() is None, log.read_text()
        (process,) = psutil.Process(outside.pid).children()
        yield Container(image, process, log)
        if outside.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
        assert outside.wait(30) == 0, log.read_text()
    finally:
        if outside.poll() is None:
            # Process 1 in there, with which all others end.
            for inside in psutil.Process(outside.pid).children():
                inside.kill()
            outside.wait()


def _found(program: Sequence[str], opt: Path) -> list[str]:
    return [str(opt / "bin" / program[0]), *program[1:]]
