"""Who may use the console: whoever could do the same through a listener."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from broker.settings.loading import load_settings
from ops.secure.files import SecurityFiles
from ops.serve.http_child import console_login

SASL = "SASL_PLAINTEXT://127.0.0.1:9092"
MECHANISMS = {"MOLDAU_BROKER_SASL_ENABLED_MECHANISMS": "SCRAM-SHA-512"}


def test_it_is_open_where_clients_need_no_login() -> None:
    assert console_login(load_settings({}, {})) == ""
    both = {"listeners": f"{SASL},PLAINTEXT://127.0.0.1:19092"}
    assert console_login(load_settings(both, MECHANISMS)) == ""


def test_it_is_off_where_they_do_and_no_administrator_is_known() -> None:
    assert console_login(load_settings({"listeners": SASL}, MECHANISMS)) is None
    authorizer = {"MOLDAU_BROKER_AUTHORIZER_CLASS_NAME": "standard"}
    assert console_login(load_settings({}, authorizer)) is None


def test_secure_asks_for_the_administrator(tmp_path: Path) -> None:
    settings = load_settings({"secure": "true", "data_dir": str(tmp_path)}, {})
    files = SecurityFiles(str(tmp_path))
    files.make(["localhost"], datetime.now(UTC))
    assert console_login(settings) == f"admin:{files.password()}"
    files.client.write_text("security.protocol=SASL_SSL\n")
    assert console_login(settings) is None
