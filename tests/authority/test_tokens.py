"""Bearer tokens: which are accepted, with clocks that differ."""

import base64
import hashlib
import hmac
import json
from pathlib import Path

import pytest

from busway.authority import keys
from busway.authority.tokens import TokenError, TokenSettings, TokenVerifier, issue, jwks_of

NOW = 1_800_000_000
CLAIMS = {"sub": "alice", "aud": "busway", "exp": NOW + 60, "roles": ["trader"]}


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "signing.key"
    path.write_bytes(keys.to_pem(keys.new_private()))
    (tmp_path / "jwks.json").write_text(jwks_of(path))
    return path


@pytest.fixture
def verifier(key: Path) -> TokenVerifier:
    return TokenVerifier(TokenSettings(key.parent / "jwks.json", "busway", leeway=30))


def test_a_valid_token_names_user_and_roles(key: Path, verifier: TokenVerifier):
    bearer = verifier.check(issue(key, CLAIMS), NOW)
    assert (bearer.user, bearer.roles, bearer.expires) == ("alice", ("trader",), NOW + 90)
    assert verifier.check(issue(key, CLAIMS | {"roles": "a b"}), NOW).roles == ("a", "b")


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": NOW - 31},
        {"exp": None},
        {"exp": "soon"},
        {"exp": True},
        {"nbf": NOW + 31},
        {"iat": NOW + 31},
        {"aud": "others"},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"roles": 7},
        {"roles": [7]},
    ],
)
def test_refused_claims(key: Path, verifier: TokenVerifier, claims: dict[str, object]):
    merged = {name: value for name, value in (CLAIMS | claims).items() if value is not None}
    try:
        token = issue(key, merged)
    except TypeError:  # the library does not sign it
        return
    with pytest.raises(TokenError):
        verifier.check(token, NOW)


def test_clocks_may_differ_a_little(key: Path, verifier: TokenVerifier):
    assert verifier.check(issue(key, CLAIMS | {"exp": NOW - 29}), NOW)
    assert verifier.check(issue(key, CLAIMS | {"nbf": NOW + 29, "iat": NOW + 29}), NOW)


def test_a_token_of_another_key_or_without_signature(tmp_path: Path, verifier: TokenVerifier):
    other = tmp_path / "other.key"
    other.write_bytes(keys.to_pem(keys.new_private()))

    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    unsigned = f"{part({'alg': 'none'})}.{part(CLAIMS)}."
    text = f"{part({'alg': 'HS256'})}.{part(CLAIMS)}"
    public = (tmp_path / "jwks.json").read_bytes()
    signature = base64.urlsafe_b64encode(hmac.digest(public, text.encode(), hashlib.sha256)).rstrip(b"=").decode()
    for token in (issue(other, CLAIMS), unsigned, f"{text}.{signature}", "", "a.b.c", "x" * 20_000, None, 7):
        with pytest.raises(TokenError):
            verifier.check(token, NOW)


def test_a_jwks_file_with_secrets_only_is_refused(tmp_path: Path):
    path = tmp_path / "jwks.json"
    for content in ('{"keys": [{"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"}]}', "{}", "no json"):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"jwks\.json"):
            TokenVerifier(TokenSettings(path, "busway"))
