"""Grants of a key: one of its patterns must cover the whole requested pattern."""

from itertools import product

import pytest
from hypothesis import given, strategies as st

from busway.gateway.auth.grants import VERBS, Key, covers
from busway.topic import matches


@pytest.mark.parametrize(
    ("granted", "asked", "yes"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/c", False),
        ("a/*", "a/b", True),
        ("a/*", "a/*", True),
        ("a/*", "a/**", False),
        ("a/*", "a", False),
        ("a/**", "a", True),
        ("a/**", "a/*/c", True),
        ("a/**", "**", False),
        ("a/**", "*/b", False),
        ("**", "**", True),
        ("**", "", True),
        ("*", "", False),
        ("**/x", "a/**/x", True),
        ("**/x", "a/**", False),
        ("*/**", "**/*", True),
        ("**/*/**", "*", True),
        ("**/*/**", "**", False),
        ("**", "re:.*", False),
        ("re:a.*", "re:a.*", True),
        ("re:a.*", "re:ab", False),
        ("re:a.*", "abc", True),
        ("re:a.*", "bc", False),
        ("re:a.*", "a/*", False),
        ("**", "$bus/stream/remove", False),
        ("*/stats", "$bus/stats", False),
        ("re:.*", "$bus/stats", False),
        ("$bus/stats", "$bus/stats", True),
        ("$bus/**", "$bus/stream/list", True),
        ("**", "$business", True),
    ],
)
def test_covers(granted, asked, yes):
    assert covers(granted, asked) is yes


PATTERN = st.lists(st.sampled_from(["a", "b", "*", "**"]), max_size=4).map("/".join)


@given(PATTERN, PATTERN)
def test_covers_is_what_trying_every_topic_says(granted, asked):
    topics = ["/".join(one) for size in range(6) for one in product("abc", repeat=size)]
    wanted = all(matches(granted, topic) for topic in topics if matches(asked, topic))
    assert covers(granted, asked) == wanted


def test_a_pattern_that_would_take_for_ever_is_not_covered():
    few, many = ("**/a/" + "/".join(["*"] * size) for size in (3, 25))
    assert covers(few, f"x/{few}")
    assert not covers(many, f"x/{many}")  # it is, but nobody waits for that


def test_what_is_not_granted_is_not_allowed():
    nothing = Key("k", "s")
    assert not any(nothing.may(verb, "a") for verb in VERBS)
    for verb in VERBS:
        key = Key("k", "s", **{verb: ("a/**", "b")})
        assert [one for one in VERBS if key.may(one, "a/x")] == [verb]
        assert key.may(verb, "/b")
        assert not key.may(verb, "c")


@pytest.mark.parametrize("topic", ["a//b", "a/", "a*", "re:(", "a\n"])
def test_a_wrong_topic_is_not_allowed(topic):
    assert not Key("k", "s", publish=("**",)).may("publish", topic)


def test_a_verb_that_is_none_is_told():
    with pytest.raises(ValueError, match="verb must be one of"):
        Key("k").may("remove", "a")


def test_the_secret_is_not_shown():
    assert "hidden" not in repr(Key("k", "hidden"))
