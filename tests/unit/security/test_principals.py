"""`ssl.principal.mapping.rules`, with the examples of Kafka's documentation and tests."""

import pytest

from moldau.broker.security.principals import PrincipalRules

KAFKA = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, "
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, "
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, "
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "subject", "principal"),
    [
        ("DEFAULT", "CN=alice,O=x", "User:CN=alice,O=x"),
        (KAFKA, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "User:Duke"),
        (KAFKA, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "User:duke@sme"),
        (KAFKA, "cn=duke,ou=sme,dc=mycp,dc=com", "User:DUKE@SME"),
        (KAFKA, "cN=duke,OU=JavaSoft,O=Sun Microsystems", "User:DUKE"),
        (KAFKA, "OU=JavaSoft,O=Sun Microsystems,C=US", "User:OU=JavaSoft,O=Sun Microsystems,C=US"),
        ("RULE:^CN=(.*?),.*$/$1/", "O=x", None),
        ("RULE:CN=a/x/", "CN=ab", None),  # the whole subject has to match
        ("RULE:^CN=(.*)$/$1-$2/", "CN=a", "User:a-$2"),  # there is no second group
        (r"RULE:^CN=(.*)$/\$1\/$1/", "CN=a", "User:$1/a"),
        (r"RULE:^CN=a\/b,(.*)$/$1/", "CN=a/b,O=x", "User:O=x"),
        ("RULE:^CN=(x)?(.*)$/$1$2/", "CN=a", "User:a"),
        (" RULE:^CN=a,O=b$/c,d/ , DEFAULT ", "CN=a,O=b", "User:c,d"),
    ],
)
def test_a_subject_becomes_a_principal(rules: str, subject: str, principal: str | None) -> None:
    assert PrincipalRules(rules).principal(subject) == principal


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ("", "there is no rule"),
        ("default", "'default' is not a rule"),
        ("DEFAULT, nonsense", "'nonsense' is not a rule"),
        ("RULE:^CN=(.*)$/$1", "not a rule"),
        ("RULE:^CN=(.*)$/$1/X", "not a rule"),
        ("RULE:^CN=(.*$/$1/", "the pattern .* cannot be read: missing \\)"),
    ],
)
def test_a_slip_is_named(rules: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        PrincipalRules(rules)
