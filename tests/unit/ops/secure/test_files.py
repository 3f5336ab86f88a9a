"""What `serve --secure` writes: once, for this user only, and good for clients."""

from __future__ import annotations

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from moldau.broker.process import BootFailure
from moldau.ops.client import read_client_settings
from moldau.ops.client.security import Tls
from moldau.ops.secure.certificates import RENEW_BEFORE, expiry
from moldau.ops.secure.files import SecurityFiles

NOW = datetime(2026, 11, 17, tzinfo=UTC)
HOSTS = ["broker.example.com", "localhost", "127.0.0.1", "::1"]


@pytest.fixture
def files(tmp_path: Path) -> SecurityFiles:
    made = SecurityFiles(str(tmp_path / "data"))
    made.make(HOSTS, NOW)
    return made


def contents(files: SecurityFiles) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in files.directory.glob("[a-z]*")}


def test_everything_is_made_once_and_for_this_user_only(files: SecurityFiles) -> None:
    before = contents(files)
    assert sorted(before) == [
        "ca-key.pem", "ca.pem", "client.properties", "librdkafka.properties", "server.pem",
    ]  # fmt: skip
    for directory in (files.directory, files.directory.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for path in files.directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    files.directory.chmod(0o755)
    assert files.make(HOSTS, NOW + timedelta(days=100)) == []
    assert contents(files) == before
    assert stat.S_IMODE(files.directory.stat().st_mode) == 0o700


def test_both_files_of_settings_say_the_same_and_the_pair_fits(files: SecurityFiles) -> None:
    java = read_client_settings(str(files.client)).security
    assert java == read_client_settings(str(files.librdkafka)).security
    assert java.protocol == "SASL_SSL"
    assert java.sasl is not None
    assert (java.sasl.username, java.sasl.password) == ("admin", files.password())
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.server)


def test_the_certificate_alone_is_renewed(files: SecurityFiles) -> None:
    before = contents(files)
    near = expiry(before["server.pem"]) - RENEW_BEFORE
    assert files.make(HOSTS, near) == [files.server]
    assert files.make([*HOSTS, "10.0.0.7"], near) == [files.server]
    after = contents(files)
    assert {name for name in before if after[name] != before[name]} == {"server.pem"}


def test_without_the_key_of_the_ca_a_certificate_is_left_as_it_is(files: SecurityFiles) -> None:
    files.ca_key.unlink()
    assert files.make(["elsewhere"], NOW) == []


def test_lost_settings_are_made_again_with_another_password(files: SecurityFiles) -> None:
    before = files.password()
    files.librdkafka.unlink()
    assert files.make(HOSTS, NOW) == [files.librdkafka]
    assert files.password() == before
    files.client.unlink()
    assert files.make(HOSTS, NOW) == [files.client]
    assert files.password() not in (before, None)
    assert read_client_settings(str(files.client)) [0] == read_client_settings(
        str(files.librdkafka)
    )[0]  # fmt: skip


def test_a_certificate_without_its_ca_is_no_start(files: SecurityFiles) -> None:
    files.ca.unlink()
    with pytest.raises(BootFailure, match=r"ca\.pem is missing"):
        files.make(HOSTS, NOW)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "security").write_text("")
    with pytest.raises(BootFailure, match=r"security.*--secure keeps"):
        SecurityFiles(str(tmp_path)).make(HOSTS, NOW)


def test_with_a_certificate_of_ones_own_no_ca_is_made(tmp_path: Path) -> None:
    files = SecurityFiles(str(tmp_path))
    assert files.make(None, NOW) == [files.client]
    assert sorted(contents(files)) == ["client.properties", "librdkafka.properties"]
    security = read_client_settings(str(files.client)).security
    assert security.tls == Tls()  # the authorities of the system


def test_the_secret_of_tokens_is_made_where_it_is_wanted_and_kept(files: SecurityFiles) -> None:
    assert files.make(HOSTS, NOW, makes_token_secret=True) == [files.token_secret]
    secret = files.read_token_secret()
    assert len(secret) == 64
    assert stat.S_IMODE(files.token_secret.stat().st_mode) == 0o600
    assert files.make(HOSTS, NOW, makes_token_secret=True) == []
    assert files.read_token_secret() == secret
    files.token_secret.write_text("\n")
    with pytest.raises(BootFailure, match="token-secret is empty"):
        files.read_token_secret()
