"""The policy: what grants decide, compared with a small model that tries all short topics."""

import functools
import itertools

import pytest
from hypothesis import given, settings, strategies as st

from busway._core import VERBS
from busway.authority.grants import Grant
from busway.authority.policy import Policy, Role, User, check_user
from tests.support.strength import examples

TOPICS = ["", *("/".join(path) for size in range(1, 6) for path in itertools.product("abz", repeat=size))]


def fits(pattern: list[str], topic: list[str]) -> bool:
    """Whether a topic matches a pattern."""
    if not pattern:
        return not topic
    if pattern[0] == "**":
        return any(fits(pattern[1:], topic[start:]) for start in range(len(topic) + 1))
    return bool(topic) and pattern[0] in ("*", topic[0]) and fits(pattern[1:], topic[1:])


@functools.cache
def topics(pattern: str) -> set[str]:
    parts = pattern.split("/") if pattern else []
    return {topic for topic in TOPICS if fits(parts, topic.split("/") if topic else [])}


def model(roles: list[Role], verb: str, requested: str) -> bool:
    """The decision in a few lines: a deny in common wins, and one allow has all topics."""
    wanted = topics(requested)
    for role in roles:
        if any(verb in grant.verbs and topics(grant.pattern) & wanted for grant in role.deny):
            return False
    return any(verb in grant.verbs and wanted <= topics(grant.pattern) for role in roles for grant in role.allow)


patterns = st.lists(st.sampled_from(["a", "b", "*", "**"]), max_size=3).map("/".join)
grants = st.builds(
    Grant, st.lists(st.sampled_from(VERBS[:3]), min_size=1, max_size=2, unique=True).map(tuple), patterns
)
roles = st.lists(
    st.tuples(st.lists(grants, max_size=3).map(tuple), st.lists(grants, max_size=2).map(tuple)), min_size=1, max_size=3
)


@settings(max_examples=examples(2000))
@given(roles, st.sampled_from(VERBS[:3]), patterns)
def test_the_policy_decides_as_the_model(parts, verb, requested):
    named = [Role(f"r{number}", *part) for number, part in enumerate(parts)]
    policy = Policy([User("u", tuple(role.name for role in named))], named)
    assert policy.grants("u").may(VERBS.index(verb), requested) == model(named, verb, requested)
    assert policy.decide("u", verb, requested).allowed == model(named, verb, requested)


def policy(allow: str = "", deny: str = "", **more: Role) -> Policy:
    def listed(text: str) -> tuple[Grant, ...]:
        return tuple(Grant.parse(one) for one in text.split(";") if one)

    return Policy([User("alice", tuple(more), listed(allow), listed(deny))], more.values())


def test_a_pattern_with_the_name_of_the_user_is_for_that_user():
    desk = Role("desk", (Grant.parse("all desk/{user}/**"),))
    shared = Policy([User("alice", ("desk",)), User("bob", ("desk",))], [desk])
    assert shared.decide("alice", "publish", "desk/alice/x").allowed
    assert not shared.decide("alice", "publish", "desk/bob/x").allowed
    assert shared.decide("bob", "publish", "desk/bob/x").allowed


def test_the_reason_names_the_grant_and_its_role():
    found = policy("publish a/**", closed=Role("closed", (), (Grant.parse("publish,push a/b"),)))
    assert found.decide("alice", "publish", "a/c").reason == "allowed by 'publish a/**' of the user"
    assert found.decide("alice", "publish", "a/b").reason == "denied by 'publish,push a/b' of role closed"
    assert found.decide("alice", "read", "a/c").reason == "no grant covers it"


def test_a_user_without_grants_may_do_nothing():
    assert not any(Policy().decide("nobody", verb, "a").allowed for verb in VERBS)


def test_a_grant_of_everything_has_no_topics_of_the_broker():
    assert not policy("all **").decide("alice", "admin", "$bus/cluster/promote").allowed
    assert policy("admin $bus/**").decide("alice", "admin", "$bus/cluster/promote").allowed


@pytest.mark.parametrize("requested", ["a\0", "a//b", "**a"])
def test_invalid_topics_are_not_allowed(requested):
    assert not policy("all **").grants("alice").may(0, requested)


def test_unicode_look_alikes_are_other_topics():
    found = policy("publish **", "publish geheim/é")
    assert not found.decide("alice", "publish", "geheim/é").allowed
    assert found.decide("alice", "publish", "geheim/e\u0301").allowed  # another topic, with other subscribers
    for name in ("аlice", "alice\u200b", "ａlice", "ali ce", "a/b", "*", "", "-a", "a" * 129):
        with pytest.raises(ValueError, match="name of a user"):
            check_user(name)


def test_what_a_later_policy_takes_away():
    wide, narrow = policy("publish a/**;read b"), policy("publish a/**")
    assert wide.narrowed(narrow, "alice")
    assert not narrow.narrowed(wide, "alice")
    assert wide.narrowed(policy("publish a/**;read b", "read b"), "alice")
    assert not wide.narrowed(policy("publish,read b;publish a/**"), "alice")


def test_many_roles_with_many_patterns_are_decided_quickly_enough_to_be_tested():
    many = [
        Role(f"r{number}", tuple(Grant.parse(f"publish t{number}/{part}/**") for part in range(10)))
        for number in range(1000)
    ]
    big = Policy([User("alice", tuple(role.name for role in many))], many)
    assert big.decide("alice", "publish", "t999/9/x").allowed
    assert not big.decide("alice", "publish", "t999/10/x").allowed
    assert not big.decide("alice", "publish", "**").allowed
