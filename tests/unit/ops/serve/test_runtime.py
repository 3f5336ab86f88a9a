"""The runtime directory belongs to one user; a lock to the processes that hold its descriptor."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.broker.settings.processes import ConfigError
from moldau.ops.serve.runtime import (
    LockedError,
    check_socket_path,
    ensure_runtime_dir,
    runtime_dir,
    take_lock,
)


def test_the_runtime_directory_is_the_most_specific_one_named() -> None:
    env = {"TMPDIR": "/t"}
    assert runtime_dir(env) == Path(f"/t/moldau-{os.getuid()}")
    env["XDG_RUNTIME_DIR"] = "/run/user/1"
    assert runtime_dir(env) == Path("/run/user/1/moldau")
    env["MOLDAU_RUNTIME_DIR"] = "/r"
    assert runtime_dir(env) == Path("/r")


def test_the_runtime_directory_is_made_private(tmp_path: Path) -> None:
    env = {"MOLDAU_RUNTIME_DIR": str(tmp_path / "a" / "b")}
    path = ensure_runtime_dir(env)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    path.chmod(0o777)
    assert stat.S_IMODE(ensure_runtime_dir(env).stat().st_mode) == 0o700


def test_a_planted_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is not a directory of user"):
        ensure_runtime_dir({"MOLDAU_RUNTIME_DIR": str(tmp_path / "link")})


def test_a_path_too_long_for_a_socket_is_refused() -> None:
    with pytest.raises(ConfigError, match="choose a shorter MOLDAU_RUNTIME_DIR"):
        check_socket_path(Path("/" + "x" * 120))


def test_a_lock_is_refused_while_its_holder_lives(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    descriptor = take_lock(path)
    with pytest.raises(LockedError) as raised:
        take_lock(path)
    assert raised.value.pid == os.getpid()
    os.close(descriptor)
    os.close(take_lock(path))


def test_a_lock_stays_with_a_child_that_inherited_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, subprocess, sys\n"
            "from pathlib import Path\n"
            "from moldau.ops.serve.runtime import take_lock\n"
            "lock = take_lock(Path(sys.argv[1]))\n"
            "subprocess.Popen(['sleep', '600'], pass_fds=[lock], stdin=0, stdout=2)\n"
            "print('ready', flush=True)\n",
            str(path),
        ],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"ready\n"
        holder.wait()  # the one that took it is gone, the child is not
        with pytest.raises(LockedError) as raised:
            take_lock(path, patience_s=0.1)
        assert raised.value.pid == holder.pid
    finally:
        os.killpg(holder.pid, 9)
        holder.stdout.close()
    os.close(take_lock(path))  # waits for the child to be gone


def test_what_a_lock_file_said_before_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("something much longer than a process id\n")
    descriptor = take_lock(path)
    assert path.read_text() == f"{os.getpid()}\n"
    os.close(descriptor)
