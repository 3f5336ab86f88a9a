"""Delegation tokens by raw requests: made, used, renewed and ended, through the router and on
workers' ports. The codes are those that Apache Kafka 4.3 gave to the same requests."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
import redis

from moldau.broker.errors import ErrorCode
from moldau.broker.security.acl import Acl
from moldau.broker.security.identity import Identity
from moldau.broker.security.resources import Operation, PatternType, Permission, ResourceType
from moldau.broker.security.tokens import MAX_RENEWERS, password_of
from moldau.broker.wire.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from moldau.broker.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.broker.wire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.brokers.running import wait_until
from tests.support.brokers.sasl_broker import SaslBroker, sasl_broker
from tests.support.raw.delegation import (
    SHA_256,
    SHA_512,
    TokenScramClient,
    create,
    created,
    describe,
    expire,
    log_in,
    renew,
)
from tests.support.raw.identified import IdentifiedClient
from tests.support.raw.sasl import LoginFailed, SaslClient, closes_soon

DAY = 86_400_000
DISABLED, NOT_FOUND, MISMATCH, NOT_ALLOWED, DENIED, EXPIRED = range(61, 67)
BROKER_RESOURCE = 4
SETTINGS: dict[str, object] = {
    "authorizer.class.name": "standard",
    "super.users": "User:admin",
    "delegation.token.secret.key": "the secret of this test",
    "delegation.token.expiry.check.interval.ms": 1000,
}


@pytest.fixture(scope="module")
def sasl() -> Iterator[SaslBroker]:
    with sasl_broker(SETTINGS, listeners=["SASL_PLAINTEXT", "PLAINTEXT"]) as running:
        for user in ("bob", "admin"):
            running.set_password(user, "secret")
        yield running


@pytest.fixture(params=["router", "0"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def alice(sasl: SaslBroker, where: str) -> Iterator[SaslClient]:
    with sasl.log_in(where) as client:
        yield client


@pytest.fixture
def bob(sasl: SaslBroker, where: str) -> Iterator[SaslClient]:
    with sasl.log_in(where, user="bob") as client:
        yield client


@pytest.fixture
def admin(sasl: SaslBroker, where: str) -> Iterator[SaslClient]:
    with sasl.log_in(where, user="admin") as client:
        yield client


def now() -> int:
    return time.time_ns() // 1_000_000


def by_token(sasl: SaslBroker, where: str, token_id: str, token_hmac: bytes) -> SaslClient:
    client = SaslClient(sasl.port(where))
    log_in(client, token_id, token_hmac)
    return client


# --- making them ---


def test_a_token_lives_as_long_as_is_configured_or_asked_for(alice: SaslClient) -> None:
    for asked, longest in ((-1, 7 * DAY), (0, 7 * DAY), (1 << 62, 7 * DAY), (3_600_000, 3_600_000)):
        before = now()
        made = created(alice, max_lifetime_ms=asked)
        assert before <= made.issue_timestamp_ms <= now()
        assert made.max_timestamp_ms == made.issue_timestamp_ms + longest
        assert made.expiry_timestamp_ms == made.issue_timestamp_ms + min(longest, DAY)
        assert (made.principal_type, made.principal_name) == ("User", "alice")
        assert made.token_requester_principal_name == "alice"
        assert (len(made.token_id), len(made.hmac)) == (22, 64)
        assert expire(alice, made.hmac)[0] == 0


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_a_token_logs_in_as_its_owner_everywhere(
    sasl: SaslBroker, alice: SaslClient, mechanism: str
) -> None:
    made = created(alice, max_lifetime_ms=600_000)
    for place in ("router", "0", "1"):
        with SaslClient(sasl.port(place)) as client:
            last = log_in(client, made.token_id, made.hmac, mechanism)
            assert 0 < last.session_lifetime_ms <= 600_000
            assert client.is_served
            # What alice may do, she may with her token: nothing, without an ACL.
            topic = MetadataRequestTopic(name="not-hers")
            (answer,) = client.call(MetadataRequest([topic]), 9).topics
            assert answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    expire(alice, made.hmac)


def test_acls_of_the_owner_apply(sasl: SaslBroker, alice: SaslClient, where: str) -> None:
    acl = Acl(
        ResourceType.TOPIC,
        f"hers-{where}",
        PatternType.LITERAL,
        "User:alice",
        "*",
        Operation.DESCRIBE,
        Permission.ALLOW,
    )
    made = created(alice)
    with (
        by_token(sasl, where, made.token_id, made.hmac) as client,
        IdentifiedClient(sasl.broker) as operator,
    ):
        topic = MetadataRequestTopic(name=acl.name)

        def code() -> int:
            (answer,) = client.call(MetadataRequest([topic], False), 9).topics
            return int(answer.error_code)

        assert code() == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not any(operator.create([acl]))
        assert code() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_token_session_makes_changes_and_sees_no_tokens(
    sasl: SaslBroker, alice: SaslClient, where: str
) -> None:
    made = created(alice)
    with by_token(sasl, where, made.token_id, made.hmac) as client:
        answer = create(client)
        assert (answer.error_code, answer.expiry_timestamp_ms) == (NOT_ALLOWED, -1)
        assert renew(client, made.hmac) == (NOT_ALLOWED, -1)
        assert expire(client, made.hmac) == (NOT_ALLOWED, -1)
        listed = client.call(DescribeDelegationTokenRequest(None), 3)
        assert (listed.error_code, listed.tokens) == (NOT_ALLOWED, [])
        # Logged in again with the password, it is a session like any other; and back.
        client.log_in(SHA_256, "alice", "secret")
        assert made.token_id in describe(client)
        log_in(client, made.token_id, made.hmac)
        assert create(client).error_code == NOT_ALLOWED
        # Another one's token is another one.
        with sasl.log_in(where, user="bob") as bob:
            theirs = created(bob)
        with pytest.raises(LoginFailed, match="Cannot change principals"):
            log_in(client, theirs.token_id, theirs.hmac)


def test_without_a_login_nothing_is_allowed(sasl: SaslBroker, where: str) -> None:
    with SaslClient(sasl.port(where, "PLAINTEXT")) as client:
        answer = create(client)
        assert answer.error_code == NOT_ALLOWED
        assert (answer.principal_name, answer.token_id, answer.hmac) == ("ANONYMOUS", "", b"")
        assert renew(client, b"x") == expire(client, b"x") == (NOT_ALLOWED, -1)
        assert client.call(DescribeDelegationTokenRequest(None), 1).error_code == NOT_ALLOWED


def test_a_token_for_another_needs_create_tokens(
    sasl: SaslBroker, alice: SaslClient, admin: SaslClient, where: str
) -> None:
    other = f"other-{where}"
    refused = create(alice, other)
    assert (refused.error_code, refused.principal_name) == (DENIED, other)
    assert refused.token_requester_principal_name == "alice"
    acl = Acl(
        ResourceType.USER,
        f"User:{other}",
        PatternType.LITERAL,
        "User:alice",
        "*",
        Operation.CREATE_TOKENS,
        Permission.ALLOW,
    )
    with IdentifiedClient(sasl.broker) as operator:
        assert not any(operator.create([acl]))
        made = created(alice, other)
        with by_token(sasl, where, made.token_id, made.hmac) as client:
            assert create(client).principal_name == other
        # She sees what she asked for, but is neither its owner nor a renewer.
        assert describe(alice)[made.token_id].principal_name == other
        assert renew(alice, made.hmac) == expire(alice, made.hmac) == (MISMATCH, 0)
        # DENY wins, and what it denies is not created.
        assert not any(operator.create([_denied(acl)]))
        assert create(alice, other).error_code == DENIED
    assert created(admin, other).principal_name == other


def _denied(acl: Acl) -> Acl:
    return Acl(
        acl.resource, acl.name, acl.pattern, acl.principal, "*", acl.operation, Permission.DENY
    )


def test_principals_that_cannot_be(alice: SaslClient, admin: SaslClient) -> None:
    wrong = ErrorCode.INVALID_PRINCIPAL_TYPE
    renewers = [CreatableRenewers("Group", "x")]
    assert alice.call(CreateDelegationTokenRequest(None, None, renewers, -1), 3).error_code == wrong
    # In Kafka such a token logs in as User:bob.
    other = CreateDelegationTokenRequest("Group", "bob", [], -1)
    assert admin.call(other, 3).error_code == wrong
    assert alice.call(other, 3).error_code == DENIED
    many = tuple(f"renewer-{number}" for number in range(MAX_RENEWERS + 1))
    assert create(alice, renewers=many).error_code == ErrorCode.INVALID_REQUEST
    assert create(alice, renewers=("x" * 2000,)).error_code == ErrorCode.INVALID_REQUEST
    made = created(alice, renewers=many[1:])
    assert len(describe(alice)[made.token_id].renewers) == MAX_RENEWERS
    assert expire(alice, made.hmac)[0] == 0


# --- renewing and expiring ---


def test_the_owner_and_renewers_renew(alice: SaslClient, bob: SaslClient) -> None:
    made = created(alice, renewers=("bob",), max_lifetime_ms=2 * DAY)
    for client in (alice, bob):
        for period, expected in ((-1, DAY), (0, DAY), (60_000, 60_000), ((1 << 63) - 1, DAY)):
            before = now()
            code, expires_at = renew(client, made.hmac, period)
            assert code == 0
            assert before + expected <= expires_at <= now() + expected
            assert describe(alice)[made.token_id].expiry_timestamp == expires_at
    code, expires_at = expire(bob, made.hmac, (1 << 63) - 1)
    assert (code, expires_at) == (0, made.max_timestamp_ms)
    code, expires_at = expire(bob, made.hmac)
    assert code == 0
    assert expires_at <= now()
    assert renew(alice, made.hmac) == expire(alice, made.hmac) == (NOT_FOUND, 0)
    assert made.token_id not in describe(alice)


def test_others_do_not(alice: SaslClient, bob: SaslClient, admin: SaslClient) -> None:
    made = created(alice)
    for client in (bob, admin):  # a super user is no renewer either
        assert renew(client, made.hmac) == (MISMATCH, 0)
        assert expire(client, made.hmac) == (MISMATCH, 0)
    for forged in (b"", b"x" * 64, made.hmac[:-1], made.hmac + b"x", made.token_id.encode()):
        assert renew(alice, forged) == expire(alice, forged) == (NOT_FOUND, 0)
    assert expire(alice, made.hmac)[0] == 0


def test_the_operator_is_never_locked_out(sasl: SaslBroker, alice: SaslClient) -> None:
    made = created(alice)
    with IdentifiedClient(sasl.broker, worker=1) as operator:
        assert describe(operator)[made.token_id].hmac == made.hmac
        assert renew(operator, made.hmac)[0] == 0
        assert expire(operator, made.hmac)[0] == 0
    assert made.token_id not in describe(alice)


def test_who_sees_which_tokens(
    sasl: SaslBroker, alice: SaslClient, bob: SaslClient, admin: SaslClient, where: str
) -> None:
    hers, shared = created(alice), created(alice, renewers=("bob",))
    his = created(bob)

    def seen(client: SaslClient, *owners: str) -> set[str]:
        return describe(client, *owners).keys() & {each.token_id for each in (hers, shared, his)}

    all_three = {hers.token_id, shared.token_id, his.token_id}
    assert seen(alice) == {hers.token_id, shared.token_id}
    assert seen(bob) == {shared.token_id, his.token_id}
    assert seen(bob, "alice") == {shared.token_id}
    assert seen(admin) == all_three
    assert seen(admin, "bob") == {shared.token_id, his.token_id}
    assert seen(admin, "no one") == set()
    assert admin.call(DescribeDelegationTokenRequest([]), 3).tokens == []
    rights = [
        Acl(kind, name, PatternType.LITERAL, "User:bob", "*", operation, Permission.ALLOW)
        for kind, name, operation in (
            (ResourceType.DELEGATION_TOKEN, hers.token_id, Operation.DESCRIBE),
            (ResourceType.USER, "User:alice", Operation.DESCRIBE_TOKENS),
        )
    ]
    with IdentifiedClient(sasl.broker) as operator:
        for right in rights:
            assert not any(operator.create([right]))
            assert seen(bob) == all_three
            assert operator.delete_of("User:bob") == 1
            assert seen(bob) == {shared.token_id, his.token_id}


# --- the end ---


def test_a_removed_token_is_disconnected_everywhere(sasl: SaslBroker) -> None:
    with sasl.log_in("1") as alice, sasl.log_in("router") as other:
        made, kept = created(alice), created(alice)
        places = ("router", "router", "0", "1")
        theirs = [by_token(sasl, place, made.token_id, made.hmac) for place in places]
        staying = [by_token(sasl, place, kept.token_id, kept.hmac) for place in places]
        for client in theirs[:1] + staying:  # the second one has no connection to a worker
            assert client.is_served
        assert expire(alice, made.hmac)[0] == 0
        assert closes_soon(theirs, 5)
        assert all(client.is_served for client in (*staying, alice, other))
        for place in ("router", "0", "1"):
            with SaslClient(sasl.port(place)) as client, pytest.raises(LoginFailed):
                log_in(client, made.token_id, made.hmac)
        for client in staying:
            client.socket.close()


def test_a_token_that_expires_ends_what_it_began(sasl: SaslBroker) -> None:
    """Also where the end was moved forward after the session had begun."""
    with sasl.log_in("router") as alice:
        short, shortened = created(alice, max_lifetime_ms=1500), created(alice)
        theirs = [
            by_token(sasl, place, made.token_id, made.hmac)
            for made in (short, shortened)
            for place in ("router", "0")
        ]
        assert all(client.is_served for client in theirs)
        code, expires_at = expire(alice, shortened.hmac, 1000)
        assert code == 0
        assert closes_soon(theirs, 15)
        assert now() >= expires_at
        for made in (short, shortened):
            with SaslClient(sasl.port("1")) as client, pytest.raises(LoginFailed):
                log_in(client, made.token_id, made.hmac)
        ours = {short.token_id, shortened.token_id}
        wait_until(lambda: not ours & describe(alice).keys(), 15, "expired tokens are removed")
        assert renew(alice, short.hmac) == (NOT_FOUND, 0)


def test_an_expired_token_is_not_renewed(sasl: SaslBroker, alice: SaslClient) -> None:
    made = created(alice, max_lifetime_ms=300)
    while now() <= made.max_timestamp_ms:
        time.sleep(0.05)
    assert renew(alice, made.hmac)[0] in (EXPIRED, NOT_FOUND)  # until it is swept, or after
    assert expire(alice, made.hmac, 5)[0] in (EXPIRED, NOT_FOUND)


def test_a_token_that_ends_during_a_login_does_not_count(
    sasl: SaslBroker, alice: SaslClient, where: str
) -> None:
    made = created(alice)
    with SaslClient(sasl.port(where)) as client:
        client.handshake(SHA_256)
        scram = TokenScramClient(made.token_id, password_of(bytes(made.hmac)), SHA_256)
        first = client.token(scram.first_message())
        scram.process_server_first_message(bytes(first.auth_bytes))
        assert expire(alice, made.hmac)[0] == 0
        assert client.token(scram.final_message()).error_code == 58
        client.must_be_closed()


@pytest.mark.parametrize("what", ["unknown", "wrong", "expired", "password"])
def test_failed_logins_are_all_alike(
    sasl: SaslBroker, alice: SaslClient, where: str, what: str
) -> None:
    made = created(alice)
    if what == "expired":
        expire(alice, made.hmac)
    token_id = "AAAAAAAAAAAAAAAAAAAAAA" if what == "unknown" else made.token_id
    with SaslClient(sasl.port(where)) as client:
        # A token's id is no user.
        extension = b"tokenauth=false" if what == "password" else b"tokenauth=true"
        password = b"wrong" if what == "wrong" else made.hmac
        with pytest.raises(LoginFailed) as failure:
            log_in(client, token_id, password, extension=extension)
        assert (failure.value.code, failure.value.text) == (
            58,
            "Authentication failed during authentication due to invalid credentials with SASL "
            "mechanism SCRAM-SHA-256",
        )
        client.must_be_closed()


def test_a_preamble_with_a_token_that_is_over_is_refused(sasl: SaslBroker) -> None:
    """A router that has not heard of the token's end might send it."""
    with sasl.log_in("0") as alice:
        made = created(alice)
        identity = Identity(
            "User:alice", "10.0.0.1", "SASL_PLAINTEXT", mechanism=SHA_256, token=made.token_id
        )
        for worker in (0, 1):
            with IdentifiedClient(sasl.broker, identity, worker) as client:
                assert client.call(MetadataRequest([]), 9).cluster_id
        another = Identity("User:admin", "10.0.0.1", "SASL_PLAINTEXT", token=made.token_id)
        assert is_refused(sasl, another)
        expire(alice, made.hmac)
    assert is_refused(sasl, identity)


def is_refused(sasl: SaslBroker, identity: Identity) -> bool:
    """Whether every worker refuses it."""
    for worker in (0, 1):
        with IdentifiedClient(sasl.broker, identity, worker) as client:
            try:
                client.call(MetadataRequest([]), 9)
            except (ConnectionError, AssertionError):
                continue
            return False
    return True


# --- what lasts, and what is recorded ---


def test_tokens_outlive_workers_and_are_kept_without_their_hmacs(sasl: SaslBroker) -> None:
    with sasl.log_in("router") as alice:
        made = created(alice)
    for worker in (0, 1):
        killed = sasl.broker.kill("worker", worker)

        def is_back(killed: int = killed) -> bool:
            found = sasl.broker.pids("worker")
            return len(found) == 2 and killed not in found

        wait_until(is_back, 60, "the worker is back")

    for place in ("router", "0", "1"):

        def logs_in(place: str = place) -> bool:
            try:
                with by_token(sasl, place, made.token_id, made.hmac) as client:
                    return client.is_served
            except OSError:
                return False

        wait_until(logs_in, 60, f"a login on {place}")
    with redis.from_url(sasl.broker.store_url) as store:
        stored = store.hget("moldau:tokens", made.token_id)
        assert isinstance(stored, bytes)
        assert made.hmac not in stored


def test_the_secret_is_not_shown(admin: SaslClient) -> None:
    wanted = ["delegation.token.secret.key", "delegation.token.max.lifetime.ms"]
    resource = DescribeConfigsResource(BROKER_RESOURCE, "0", wanted)
    (result,) = admin.call(DescribeConfigsRequest([resource]), 4).results
    found = {each.name: each for each in result.configs}
    assert found[wanted[0]].value is None
    assert found[wanted[0]].is_sensitive
    assert found[wanted[1]].value == str(7 * DAY)


def test_everything_is_audited_but_no_hmac(sasl: SaslBroker) -> None:
    with sasl.log_in("router") as alice:
        made, short = created(alice, renewers=("bob",)), created(alice, max_lifetime_ms=200)
        by_token(sasl, "router", made.token_id, made.hmac).socket.close()
        renew(alice, made.hmac)
        expire(alice, made.hmac, 60_000)
        expire(alice, made.hmac)

    def events(token_id: str) -> set[str]:
        lines = [line for line in sasl.broker.log().splitlines() if token_id in line]
        found = [
            json.loads(line.partition("moldau.audit: ")[2])
            for line in lines
            if "moldau.audit: " in line
        ]
        return {
            f"{one['principal']} {one.get('action', one['event'])}"
            for one in found
            if token_id in (one.get("name"), one.get("token"))
        }

    wanted = {f"User:alice {did}" for did in ("created", "renewed", "altered", "deleted", "login")}
    wait_until(lambda: events(made.token_id) == wanted, 10, "what was done is in the log")
    swept = {"User:alice created", "User:local expired"}
    wait_until(lambda: events(short.token_id) == swept, 15, "what has expired is in the log")
    assert password_of(bytes(made.hmac)) not in sasl.broker.log()


def test_without_a_secret_there_are_no_tokens() -> None:
    settings = {**SETTINGS, "delegation.token.secret.key": ""}
    with sasl_broker(settings, workers=1) as sasl, sasl.log_in("router") as alice:
        answer = create(alice)
        assert (answer.error_code, answer.principal_name) == (DISABLED, "alice")
        assert create(alice, "bob").error_code == DENIED
        assert renew(alice, b"x")[0] == expire(alice, b"x")[0] == DISABLED
        assert alice.call(DescribeDelegationTokenRequest(None), 3).error_code == DISABLED
        with SaslClient(sasl.port("router")) as client, pytest.raises(LoginFailed):
            log_in(client, "AAAAAAAAAAAAAAAAAAAAAA", b"x")
