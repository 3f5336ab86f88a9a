"""Tokens for OAUTHBEARER: keys, key sets, and what an identity provider would sign."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa


@cache
def rsa_key(name: str = "rsa") -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@cache
def ec_key(name: str = "ec") -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public_fields(key: Any, key_id: str | None, **more: str) -> dict[str, Any]:
    """A key's entry in a key set."""
    kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else None
    text = (kind or jwt.algorithms.ECAlgorithm).to_jwk(key.public_key())
    named = {} if key_id is None else {"kid": key_id}
    return {**json.loads(text), **named, **more}


def key_set() -> dict[str, Any]:
    return {"keys": [public_fields(rsa_key(), "rsa"), public_fields(ec_key(), "ec")]}


def claims(now: int, **changed: Any) -> dict[str, Any]:
    """`now` in milliseconds; a claim that is None is left out."""
    second = now // 1000
    all_claims = {"sub": "alice", "iat": second - 10, "exp": second + 600, **changed}
    return {name: value for name, value in all_claims.items() if value is not None}


def signed(
    claims: dict[str, Any], algorithm: str = "RS256", key: Any = None, key_id: str | None = "rsa"
) -> str:
    headers = {} if key_id is None else {"kid": key_id}
    return jwt.encode(claims, key if key is not None else rsa_key(), algorithm, headers)
