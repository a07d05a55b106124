"""The users file: what it may contain, and the line of each error."""

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from busway.authority.passwords import Cost, Verifier
from busway.authority.users_file import LONGEST, UsersError, parse_users, read_users
from tests.support.strength import examples

VERIFIER = str(Verifier.make("secret", Cost(b"salt" * 4, 7168, 2, 1)))
WHOLE = f"""
# people
[roles.trader]
allow = ["publish,subscribe orders/**", "all desk/{{user}}/**"]
deny = [
    "publish orders/closed/**",  # closed for good
]

[users.alice]
roles = ["trader"]
password = "{VERIFIER}"
certificates = ["CN=alice", "DNS:alice.example"]
uids = [1000]

["users"."bob"]
keys = ["sFQPzsTNNoX/8nNKHconPy6/eYiVX8HiuyiCrdts7Os="]
"""


def refused(text: str) -> str:
    with pytest.raises(UsersError) as caught:
        parse_users(text.encode(), Path("users.toml"))
    return str(caught.value)


def test_a_whole_file():
    policy = parse_users(WHOLE.encode(), Path("users.toml"))
    assert policy.by_uid == {1000: "alice"}
    assert policy.by_certificate == {"CN=alice": "alice", "DNS:alice.example": "alice"}
    assert policy.decide("alice", "subscribe", "orders/1").allowed
    assert not policy.decide("alice", "publish", "orders/closed/1").allowed
    assert not policy.decide("bob", "subscribe", "orders/1").allowed


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ('"publish orders/closed/**"', '"publsh orders/closed/**"', 6, "'publsh' is no verb"),
        ('"publish orders/closed/**"', '"publish"', 6, "has no topic"),
        ('"publish orders/closed/**"', '"publish a//b"', 6, "empty segment"),
        ('"publish orders/closed/**"', '"publish {role}/b"', 6, "placeholder"),
        ('roles = ["trader"]', 'roles = ["tradr"]', 10, "there is no role 'tradr'"),
        ('roles = ["trader"]', 'roles = "trader"', 10, "array"),
        ('roles = ["trader"]', "", 9, ""),
        (VERIFIER, "secret", 11, "no verifier of a password"),
        ("CN=alice", "alice", 12, "no name in a certificate"),
        ("uids = [1000]", "uids = [-1]", 13, "0"),
        ("uids = [1000]", "uid = [1000]", 13, "unknown field"),
        ("sFQ", "s", 16, "no public Ed25519 key"),
        ('["users"."bob"]', '[users."b b"]', 15, "name of a user"),
        ('["users"."bob"]', "[users.Alice]", 15, "looks like 'alice'"),
        ('["users"."bob"]', "[users.bob]\nuids = [1000]", 16, "belongs to alice"),
        ("[users.alice]", "[users.alice", 9, "line 9"),
    ],
)
def test_an_error_names_its_line(old: str, new: str, line: int, reason: str):
    text = WHOLE.replace(old, new)
    if not reason:
        parse_users(text.encode(), Path("users.toml"))
        return
    found = refused(text)
    assert f"line {line}" in found, found
    assert reason in found


def test_an_error_never_shows_a_secret():
    assert "hunter2" not in refused(WHOLE.replace(VERIFIER, "hunter2"))


def test_a_file_that_is_missing_or_too_long(tmp_path: Path):
    with pytest.raises(UsersError, match="can't be read"):
        read_users(tmp_path / "users.toml")
    assert "bytes" in refused("#" * (LONGEST + 1))


@settings(max_examples=examples(500))
@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else_is_raised(data: bytes):
    try:
        parse_users(data, Path("users.toml"))
    except UsersError:
        pass


@settings(max_examples=examples(500))
@given(st.text(alphabet='[]{}=",.#\n abcusersroldny*/$', max_size=120))
def test_almost_toml_is_refused_and_nothing_else_is_raised(text: str):
    try:
        parse_users((WHOLE + text).encode(), Path("users.toml"))
    except UsersError:
        pass
