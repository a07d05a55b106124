"""Round robin, tag filters, and the conversion of names in both directions."""

import re

import pytest
from hypothesis import given as given_, strategies as st

from busway.gateway.queues import filters, names
from busway.gateway.queues.round_robin import BATCH, RoundRobin, Subscriber
from busway.streams import is_name


class Sink:
    full = False


def subscriber(credit=None, text=None):
    return Subscriber(Sink(), 0, "Q", "C", credit, text, filters.takes(text))


@given_(st.lists(st.none() | st.integers(0, 5), min_size=1, max_size=6), st.integers(0, 40))
def test_turns_are_even_and_credit_is_kept(given, count):
    ring, members = RoundRobin(), [subscriber(credit) for credit in given]
    for one in members:
        ring.add(one)
    got = {id(one): 0 for one in members}
    room = ring.room(10_000)
    assert room == sum(BATCH if credit is None else credit for credit in given)
    for _ in range(count):
        one = ring.choose(None)
        if one is None:
            assert all(
                credit is not None and got[id(member)] == credit for member, credit in zip(members, given, strict=True)
            )
            break
        got[id(one)] += 1
    for member, credit in zip(members, given, strict=True):
        if credit is not None:
            assert got[id(member)] <= credit
            assert member.credit == credit - got[id(member)]
    free = [got[id(member)] for member, credit in zip(members, given, strict=True) if credit is None]
    assert not free or max(free) - min(free) <= 1


@given_(st.lists(st.sampled_from(["add", "leave", "next"]), max_size=40))
def test_who_leaves_disturbs_no_turn(steps):
    ring, there = RoundRobin(), []
    for step in steps:
        if step == "add":
            there.append(subscriber())
            ring.add(there[-1])
        elif step == "leave" and there:
            ring.remove(there.pop(len(there) // 2))
        elif step == "next":
            one = ring.choose(None)
            assert (one is None) == (not there)
            assert one is None or one in there


def test_who_is_full_is_left_out():
    ring, one, two = RoundRobin(), subscriber(), subscriber(text="a")
    ring.add(one)
    ring.add(two)
    assert ring.filtered
    one.sink.full = True
    assert ring.choose("b") is None
    assert ring.choose("a") is two
    assert (ring.matches("b"), ring.room(BATCH * 3)) == (True, BATCH)
    ring.remove(two)
    ring.remove(two)
    assert not ring.filtered


@pytest.mark.parametrize(
    ("text", "taken", "left"),
    [
        ("abc", ["abc"], ["ab", "abcd", "a.b", None, 7]),
        ("a.*", ["a.b"], ["a", "a.b.c", "x.b", None]),
        ("a.#", ["a", "a.b", "a.b.c"], ["ab", "x", None]),
        ("#", ["a", "a.b", ""], [None]),
        ("*.b;c", ["a.b", "c"], ["a", "b", "a.b.c"]),
        (";", [], ["", "a", None]),
        ("a+b.*", ["a+b.c"], ["aab.c"]),
    ],
)
def test_filters(text, taken, left):
    takes = filters.takes(text)
    rule = filters.rule(text)["tag"]
    for tag in (*taken, *left):
        assert takes(tag) is (tag in taken)
        if isinstance(tag, str):
            found = tag in rule if isinstance(rule, list) else re.fullmatch(rule, tag) is not None
            assert found is (tag in taken)
    assert filters.takes("") is None
    assert filters.rule(None) == {}
    with pytest.raises(ValueError, match="127"):
        filters.check("x" * 128)


NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=46)


@given_(NAME)
def test_names_of_channels_come_back(name):
    try:
        written = names.channel_name(name)
    except ValueError:
        assert len(name.encode()) > 46
        return
    assert is_name(written)
    assert names.channel_shown(written) == name


@given_(NAME, NAME)
def test_names_of_streams_differ(one, two):
    assert is_name(names.stream_name(one))
    assert (names.stream_name(one) == names.stream_name(two)) == (one == two)
    assert names.stream_name("default") != "default"


@given_(st.lists(st.booleans(), min_size=1, max_size=6), st.lists(st.integers(0, 20), min_size=1, max_size=5))
def test_many_are_dealt_as_one_by_one(full, counts):
    dealt, chosen = RoundRobin(), RoundRobin()
    for one in full:
        for ring in (dealt, chosen):
            ring.add(subscriber())
            ring.members[-1].sink.full = one
    for count in counts:
        many = dealt.deal(count)
        each = [chosen.choose(None) for _ in range(count)]
        if all(full):
            assert many is None
        else:
            assert [dealt.members.index(one) for one in many] == [chosen.members.index(one) for one in each]


def test_who_has_credit_or_a_filter_is_chosen_each_time():
    ring = RoundRobin()
    ring.add(subscriber())
    assert len(ring.deal(3)) == 3
    ring.add(subscriber(credit=2))
    assert ring.deal(3) is None
    ring.members[1].credit = None
    ring.changed()
    assert len(ring.deal(3)) == 3
    ring.add(subscriber(text="a"))
    assert ring.deal(3) is None
