"""The broker keys of authorization and audit. Declarations only; all are read at start."""

from typing import Final

from moldau.broker.settings.kafka.config_key import ConfigKey, ConfigType, OneOf, Principals

STANDARD_AUTHORIZERS: Final = (
    "standard",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)

AUTHORIZATION_KEYS: Final = (
    ConfigKey(
        "authorizer.class.name",
        ConfigType.STRING,
        "",
        "standard, or the name of Kafka's StandardAuthorizer: every request is checked against the "
        "ACLs. Empty: everyone may do everything.",
        OneOf(("", *STANDARD_AUTHORIZERS)),
        read_only=True,
    ),
    ConfigKey(
        "super.users",
        ConfigType.STRING,
        "",
        "Principals that may do everything, whatever the ACLs say: User:admin;User:CN=ops,O=x.",
        Principals(),
        read_only=True,
    ),
    ConfigKey(
        "allow.everyone.if.no.acl.found",
        ConfigType.BOOLEAN,
        "false",
        "Whether everyone may do everything with resources that no ACL applies to. As soon as one "
        "does, only what ACLs allow is allowed.",
        read_only=True,
    ),
    ConfigKey(
        "moldau.audit.enable",
        ConfigType.STRING,
        "auto",
        "Whether logins, denials and changes of users, ACLs, tokens, quotas, configuration and "
        "topics are logged, and written into the topic __moldau_audit. auto: if there is an "
        "authorizer or a listener with SASL.",
        OneOf(("auto", "true", "false")),
        read_only=True,
    ),
)
