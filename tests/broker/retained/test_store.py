"""The machine of retained messages: order, lifetime and limits, with a clock of numbers."""

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from busway import InvalidPattern, InvalidRule, _core, matches
from busway.broker.flags import FIELDS, PIN, POST
from busway.broker.retained.store import RetainedMessage, RetainedStore, body_of, normal
from busway.fields import compile_where
from tests.support.strength import examples

ALICE, BOB = 0xA11CE, 0xB0B


class Selection:
    """What the engine's selection does, by the plain rule "equal payload": the rules are the payload that is wanted."""

    compared = 0

    def __init__(self, pattern: str, rules: bytes) -> None:
        if "bad" in pattern:
            raise ValueError(pattern)
        self.pattern, self.rules = pattern.removeprefix("/"), rules

    @property
    def literal(self) -> str | None:
        return None if "*" in self.pattern or self.pattern.startswith("re:") else self.pattern

    def covers(self, topic: str) -> bool:
        Selection.compared += 1
        return matches(self.pattern, topic)

    def matches(self, topic: str, fields: bytes, payload: bytes, sender: str, session: int, time: int) -> bool:
        return matches(self.pattern, topic) and self.rules == payload


def retained(count: int = 100, size: int = 10_000, grace: float = 10.0) -> RetainedStore:
    return RetainedStore(count=count, size=size, grace=grace, compile=Selection)


def message(
    kind, topic, payload=b"", *, session=ALICE, name="alice", number=1, fields=None, client=1
) -> RetainedMessage:
    packed = msgspec.msgpack.encode(fields) if fields else b""
    flags = kind | (FIELDS if packed else 0)
    return RetainedMessage(client, session, name, flags, topic, body_of(1_700, number, packed, payload))


def payloads(found: list[RetainedMessage]) -> list[bytes]:
    return [one.payload for one in found]


def test_a_message_is_read_from_its_body() -> None:
    one = message(POST, "t", b"xyz", number=7, fields={"a": 1})
    assert (one.time, one.number, one.fields, one.payload) == (1_700, 7, b"\x81\xa1a\x01", b"xyz")
    assert message(POST, "t", b"xyz").fields == b""
    assert message(POST, "t", b"xyz").payload == b"xyz"


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ({"a": 1, "b": [2, "x"]}, {"b": [2, "x"], "a": 1}, True),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}, True),
        ({"a": 0.0}, {"a": -0.0}, True),
        ({"a": [-0.0]}, {"a": [0.0]}, True),
        ({"a": float("nan")}, {"a": -float("nan")}, True),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": "x"}, {"a": b"x"}, False),
        ({"a": None}, {}, False),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({}, {}, True),
    ],
)
def test_fields_are_equal_by_value_and_type(first, second, equal) -> None:
    assert (normal(msgspec.msgpack.encode(first)) == normal(msgspec.msgpack.encode(second))) is equal
    assert normal(msgspec.msgpack.encode({})) == normal(b"") == b""


def test_a_long_form_of_the_same_fields_has_the_same_key() -> None:
    assert normal(b"\xde\x00\x01\xd9\x01a\xd3" + bytes(7) + b"\x01") == normal(b"\x81\xa1a\x01")


def test_a_post_is_replaced_by_session_topic_and_fields_and_goes_to_the_end() -> None:
    box = retained()
    box.put(message(POST, "t", b"1", fields={"a": 1}))
    box.put(message(POST, "t", b"2", fields={"a": 2}))
    box.put(message(POST, "t", b"3", fields={"a": 1}, session=BOB))
    box.put(message(POST, "u", b"4", fields={"a": 1}))
    box.put(message(POST, "t", b"5", fields={"a": 1}, name="renamed", number=2))
    assert payloads(list(box)) == payloads(box.select("**")) == [b"2", b"3", b"4", b"5"]
    assert (len(box), box.posts) == (4, 4)


def test_a_pin_is_replaced_by_sender_name_topic_and_fields() -> None:
    box = retained()
    box.put(message(PIN, "t", b"1"))
    box.put(message(PIN, "t", b"2", name="bob"))
    box.put(message(POST, "t", b"3"))
    box.put(message(PIN, "t", b"4", session=BOB))
    assert payloads(list(box)) == [b"2", b"3", b"4"]
    assert box.posts == 1


def test_taking_back() -> None:
    box = retained()
    box.put(message(PIN, "t", b"1"))
    box.put(message(POST, "t", b"2"))
    gone = box.take(message(PIN, "t", session=BOB).key)
    assert gone is not None
    assert gone.payload == b"1"
    assert box.take(message(PIN, "t").key) is None
    assert box.take(message(POST, "t", session=BOB).key) is None
    assert payloads(list(box)) == [b"2"]
    assert box.withdrawn == 1


def test_ten_thousand_posts_from_one_client_against_the_limit() -> None:
    box = retained(count=4096, size=1 << 24)
    refused = 0
    for number in range(10_000):
        one = message(POST, f"t/{number}", b"x", number=number + 1)
        if reason := box.refusal(one):
            refused += 1
            assert "4096 retained messages for one client" in reason
        else:
            box.put(one)
    assert (len(box), refused) == (4096, 10_000 - 4096)
    assert not box.refusal(message(POST, "t/1", b"y", number=20_000)), "replacing does not count twice"
    assert not box.refusal(message(POST, "t", session=BOB)), "the limit is one of each client"
    assert not box.refusal(message(PIN, "t")), "pins are counted by name"
    box.left(ALICE)
    assert not box.refusal(message(POST, "t"))


def test_the_limit_of_bytes() -> None:
    box = retained(size=100)
    box.put(message(PIN, "topic", b"x" * 60))
    assert "100 bytes" in box.refusal(message(PIN, "other", b"x" * 40))
    assert "'alice'" in box.refusal(message(PIN, "other", b"x" * 40, session=BOB)), "another session, the same name"
    assert not box.refusal(message(PIN, "topic", b"x" * 79))
    assert box.refusal(message(PIN, "topic", b"x" * 80))
    box.put(message(PIN, "topic", b""))
    assert box.bytes == len("topic") + 16
    assert not box.refusal(message(PIN, "other", b"x" * 40))


def test_posts_of_a_lost_client_wait_for_the_grace_and_pins_for_ever() -> None:
    box = retained()
    for number, topic in enumerate("abc"):
        box.put(message(POST, topic, topic.encode(), number=number + 1))
    box.put(message(PIN, "p", b"p"))
    assert box.lost(ALICE, 100.0) == []
    assert box.deadline() == 110.0
    assert box.expire(109.9) == []
    assert payloads(box.select("**")) == [b"a", b"b", b"c", b"p"]
    assert payloads(box.expire(110.0)) == [b"a", b"b", b"c"]
    assert box.deadline() is None
    assert payloads(list(box)) == [b"p"]


def test_who_returns_within_the_grace_keeps_its_posts() -> None:
    box = retained()
    box.put(message(POST, "t"))
    box.lost(ALICE, 0.0)
    box.returned(ALICE)
    assert box.deadline() is None
    assert box.expire(1000.0) == []
    box.lost(ALICE, 50.0)
    assert box.deadline() == 60.0


def test_a_client_lost_again_gets_a_new_grace() -> None:
    box = retained()
    box.put(message(POST, "t"))
    box.put(message(POST, "u", session=BOB))
    box.lost(ALICE, 0.0)
    box.lost(BOB, 1.0)
    box.lost(ALICE, 5.0)
    assert [one.session for one in box.expire(12.0)] == [BOB]
    assert [one.session for one in box.expire(15.0)] == [ALICE]


def test_one_who_says_that_it_goes_takes_its_posts_along() -> None:
    box = retained()
    box.put(message(POST, "t", b"1"))
    box.put(message(POST, "t", b"2", session=BOB))
    box.lost(ALICE, 0.0)
    assert payloads(box.left(ALICE)) == [b"1"]
    assert box.left(ALICE) == []
    assert box.deadline() is None


def test_without_grace_a_lost_client_has_left() -> None:
    box = retained(grace=0.0)
    box.put(message(POST, "t", b"1"))
    assert payloads(box.lost(ALICE, 0.0)) == [b"1"]


def test_one_without_posts_is_not_waited_for() -> None:
    box = retained()
    box.put(message(PIN, "t"))
    box.lost(ALICE, 0.0)
    assert box.deadline() is None


def test_what_comes_again_under_its_id_is_known() -> None:
    box = retained()
    box.put(message(POST, "t", b"1", number=5))
    assert box.same(message(POST, "t", b"1", number=5))
    assert not box.same(message(POST, "t", b"1", number=6))
    assert not box.same(message(POST, "u", b"1", number=5))
    assert not box.same(message(PIN, "t", b"1", number=5))
    box.put(message(PIN, "p", number=5))
    assert box.same(message(PIN, "p", number=5))
    assert not box.same(message(PIN, "p", number=5, session=BOB)), "the same name, but another program"


def test_selecting_by_pattern_and_rules_in_order() -> None:
    box = retained()
    for number, topic in enumerate(["b/1", "a/1", "b/2", "a/1", "a/*", "c"]):
        box.put(message(POST, topic, b"even" if number % 2 == 0 else b"odd", fields={"n": number}))
    assert [one.topic for one in box.select("*/1")] == ["b/1", "a/1", "a/1", "a/*"]
    assert [one.topic for one in box.select("/a/1")] == ["a/1", "a/1", "a/*"], "a kept topic may have wildcards"
    assert [one.topic for one in box.select("re:[bc].*")] == ["b/1", "b/2", "c"]
    assert [one.topic for one in box.select("a/1", b"odd")] == ["a/1", "a/1"]
    assert [one.topic for one in box.select("**", b"even")] == ["b/1", "b/2", "a/*"]
    assert box.select("nothing") == []
    assert box.select("**", without=ALICE) == []


def test_selecting_with_the_selection_of_the_engine() -> None:
    box = RetainedStore(count=10, size=10_000, grace=1.0, compile=_core.Selection)
    for number, venue in enumerate(["krk", "bin", "krk"]):
        box.put(message(POST, f"price/{number}", fields={"venue": venue}))
    box.put(message(PIN, "price/*", fields={"venue": "krk"}))
    wanted = compile_where({"venue": "k*", ".id": "alice"}).wire
    assert [one.topic for one in box.select("price/*", wanted)] == ["price/0", "price/2", "price/*"]
    assert [one.topic for one in box.select("/price/2", wanted)] == ["price/2", "price/*"]
    assert [one.topic for one in box.select("re:price/[01]")] == ["price/0", "price/1", "price/*"]
    with pytest.raises(InvalidPattern):
        box.select("re:(")
    with pytest.raises(InvalidRule):
        box.select("**", b"\xc1")


def test_a_bad_pattern_is_told_even_if_nothing_is_kept() -> None:
    with pytest.raises(ValueError):
        retained().select("bad")


def test_a_topic_is_compared_once_for_all_its_messages_and_a_literal_one_never() -> None:
    box = retained(count=10_000, size=1 << 24)
    for number in range(1000):
        box.put(message(POST, f"t/{number % 10}", fields={"n": number}))
    Selection.compared = 0
    assert len(box.select("t/*")) == 1000
    assert Selection.compared == 10
    assert len(box.select("t/3")) == 100
    assert Selection.compared == 10


def test_what_was_put_after_a_moment() -> None:
    box = retained()
    for topic in "abc":
        box.put(message(POST, topic))
    after = box.select("b")[0].order
    assert [one.topic for one in box.select("*", after=after)] == ["c"]
    box.put(message(POST, "a", b"again"))
    assert [one.topic for one in box.select("*", after=after)] == ["c", "a"]


steps = st.lists(
    st.tuples(
        st.sampled_from(["post", "pin", "unpost", "unpin", "lost", "returned", "left", "time"]),
        st.integers(1, 3),
        st.sampled_from(["a", "b", "c/*"]),
        st.integers(0, 2),
    ),
    max_size=60,
)


@given(steps)
@settings(max_examples=examples(1000), deadline=None)
def test_agrees_with_a_list(turns) -> None:
    """A plain list of (kind, owner, topic, field, payload), and a dictionary of those whose connection is lost."""
    box, model, away, now = retained(count=4), [], {}, 0.0
    for number, (what, who, topic, value) in enumerate(turns, 1):
        payload = str(number).encode()
        if what in ("post", "pin", "unpost", "unpin"):
            kind = POST if "post" in what else PIN
            one = message(kind, topic, payload, session=who, name=f"n{who}", number=number, fields={"v": value})
            key = (kind, who, topic, value)
            if what.startswith("un"):
                had = any(row[:4] == key for row in model)
                assert (box.take(one.key) is not None) is had
                model = [row for row in model if row[:4] != key]
            else:
                rest = [row for row in model if row[:4] != key]
                full = sum(row[:2] == (kind, who) for row in rest) >= 4
                assert bool(box.refusal(one)) is full
                if not full:
                    box.put(one)
                    model = [*rest, (*key, payload)]
                    if kind == POST:
                        box.returned(who)
                        away.pop(who, None)
        elif what == "lost":
            box.lost(who, now)
            if any(row[:2] == (POST, who) for row in model):
                away[who] = now + 10.0
        elif what == "returned":
            box.returned(who)
            away.pop(who, None)
        else:
            if what == "left":
                gone, ended = box.left(who), {who}
            else:
                now += 4.0
                ended = {one for one, end in away.items() if end <= now}
                gone = box.expire(now)
            expected = [row[4] for row in model if row[0] == POST and row[1] in ended]
            assert payloads(gone) == expected
            model = [row for row in model if row[0] != POST or row[1] not in ended]
            away = {one: end for one, end in away.items() if one not in ended}
        assert payloads(list(box)) == payloads(box.select("**")) == [row[4] for row in model]
        assert payloads(box.select("a")) == [row[4] for row in model if row[2] == "a"]
        assert box.bytes == sum(one.size for one in box)
    assert (box.deadline() is None) or away


def test_a_post_that_was_under_way_for_long_is_late() -> None:
    """Its client is at another node meanwhile, and has posted something else there."""
    box = retained()
    far = message(POST, "t", b"new", number=7)
    far.remote = True
    box.put(far)
    assert box.is_late(message(POST, "t", b"old", number=3))
    assert not box.is_late(message(POST, "t", b"newer", number=8))
    assert not box.is_late(message(POST, "t", b"old", number=3, session=BOB))
    assert not box.is_late(message(POST, "u", b"old", number=3))
    assert not box.is_late(message(PIN, "t", b"old", number=3))
    box.put(message(POST, "t", b"near", number=9))
    assert not box.is_late(message(POST, "t", b"old", number=3)), "of its own client it is taken as it comes"
