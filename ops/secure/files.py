"""What `serve --secure` keeps in DATA_DIR/security: made once, never overwritten.

    ca.pem, ca-key.pem          the CA; clients trust ca.pem
    server.pem                  key and certificate of the broker; renewed when it is near its end,
                                or when it lacks a name that is advertised now
    client.properties           the administrator's settings, for Java and `--command-config`
    librdkafka.properties       the same for librdkafka: kcat -F, confluent-kafka
    token-secret                what delegation tokens are made with (delegation.token.secret.key);
                                without it the tokens that exist cannot be used any more

The directory is this user's only. A file of one's own in place of a made one is left as it is.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from moldau.broker.process import BootFailure
from moldau.broker.settings.secure_mode import ADMIN, security_dir, server_certificate, token_secret
from moldau.ops.client import InvalidSecurity, read_client_settings
from moldau.ops.secure.certificates import Pair, is_good, make_ca, make_server

MECHANISM = "SCRAM-SHA-512"
PASSWORD_BYTES = 24
SECRET_BYTES = 48

_JAVA = """\
# Written by `moldau serve --secure`, which keeps it as it is from then on.
# For Java clients and Kafka's tools (--command-config), and for moldau's own.
security.protocol=SASL_SSL
sasl.mechanism={mechanism}
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
username="{user}" password="{password}";
"""
_JAVA_CA = """\
# On another machine: copy the file there too, and change its path here.
ssl.truststore.type=PEM
ssl.truststore.location={ca}
"""
_LIBRDKAFKA = """\
# Written by `moldau serve --secure`, which keeps it as it is from then on.
# For librdkafka: kcat -F FILE -b HOST:PORT, confluent-kafka.
security.protocol=SASL_SSL
sasl.mechanism={mechanism}
sasl.username={user}
sasl.password={password}
"""
_LIBRDKAFKA_CA = """\
# On another machine: copy the file there too, and change its path here.
ssl.ca.location={ca}
"""


class SecurityFiles:
    def __init__(self, data_dir: str) -> None:
        self.directory = Path(security_dir(data_dir))
        self.ca = self.directory / "ca.pem"
        self.ca_key = self.directory / "ca-key.pem"
        self.server = Path(server_certificate(data_dir))
        self.client = self.directory / "client.properties"
        self.librdkafka = self.directory / "librdkafka.properties"
        self.token_secret = Path(token_secret(data_dir))
        # While it is there, the store may not have the password of client.properties yet.
        self.unstored = self.directory / ".password-is-new"

    def make(
        self, hosts: Sequence[str] | None, now: datetime, *, makes_token_secret: bool = False
    ) -> list[Path]:
        """What is missing; returns what was made. Raises BootFailure.

        `hosts` are the names in the certificate; None: the broker has a certificate of its own.
        """
        try:
            # `parents` alone would give the data directory the mode of the umask.
            self.directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.directory.mkdir(mode=0o700, exist_ok=True)
            # `exist_ok` leaves the mode of one that was there: others may not read it from now on.
            self.directory.chmod(0o700)
            with _locked(self.directory):
                made = self._make(hosts, now)
                if makes_token_secret and not self.token_secret.exists():
                    _write(self.token_secret, secrets.token_urlsafe(SECRET_BYTES).encode() + b"\n")
                    made.append(self.token_secret)
                return made
        except (OSError, ValueError) as error:
            raise BootFailure(
                f"{self.directory}: {error}; --secure keeps its CA and its certificates there"
            ) from None

    def _make(self, hosts: Sequence[str] | None, now: datetime) -> list[Path]:
        made = [] if hosts is None else self._make_certificates(hosts, now)
        if not self.client.exists():
            self.unstored.touch(0o600)
            self._write_settings(secrets.token_urlsafe(PASSWORD_BYTES))
            made.append(self.client)
        if not self.librdkafka.exists() and (password := self.password()) is not None:
            self._write_librdkafka(password)
            made.append(self.librdkafka)
        return made

    def _make_certificates(self, hosts: Sequence[str], now: datetime) -> list[Path]:
        made = []
        if not self.ca.exists():
            if self.server.exists():
                raise ValueError(f"{self.ca.name} is missing, but not {self.server.name}")
            pair = make_ca(f"Moldau CA of {hosts[0]}", now)
            _write(self.ca_key, pair.key)
            _write(self.ca, pair.certificate)
            made.append(self.ca)
        if self._renew(hosts, now):
            made.append(self.server)
        return made

    def _renew(self, hosts: Sequence[str], now: datetime) -> bool:
        authority = self.ca.read_bytes()
        if self.server.exists():
            if is_good(self.server.read_bytes(), authority, hosts, now):
                return False
            if not self.ca_key.exists():
                return False  # the certificate is the operator's own business
        server = make_server(Pair(authority, self.ca_key.read_bytes()), hosts, now)
        _write(self.server, server.key + server.certificate)
        return True

    def read_token_secret(self) -> str:
        """Raises BootFailure."""
        try:
            secret = self.token_secret.read_text("ascii").strip()
        except (OSError, ValueError) as error:
            raise BootFailure(f"{self.token_secret}: {error}") from None
        if not secret:
            raise BootFailure(
                f"{self.token_secret} is empty: remove it, and another secret is made; the "
                "delegation tokens that exist cannot be used any more then"
            )
        return secret

    # --- settings of clients ---

    def password(self) -> str | None:
        """The administrator's, as in client.properties; None: it says something else."""
        try:
            sasl = read_client_settings(str(self.client)).security.sasl
        except InvalidSecurity:
            return None
        return sasl.password if sasl is not None and sasl.username == ADMIN else None

    def _write_settings(self, password: str) -> None:
        _write(self.client, self._text(_JAVA, _JAVA_CA, password))
        self._write_librdkafka(password)

    def _write_librdkafka(self, password: str) -> None:
        _write(self.librdkafka, self._text(_LIBRDKAFKA, _LIBRDKAFKA_CA, password))

    def _text(self, template: str, authority: str, password: str) -> bytes:
        if self.ca.exists():  # else it is one that every system knows
            template += authority
        return template.format(
            ca=self.ca, mechanism=MECHANISM, user=ADMIN, password=password
        ).encode()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Two that start at the same time must not make two authorities."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, and readable by this user only."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
