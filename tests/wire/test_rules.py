"""Fields and rules that break docs/protocol.md: each is refused with its code and a text that names the error."""

from typing import Any

import msgspec
import pytest

from busway import _core, errors
from tests.support import page
from tests.support.rules import wire

pack = msgspec.msgpack.encode


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


FIELDS = {
    "not a map": (pack([1]), "map"),
    "cut off": (pack({"a": "bcd"})[:-1], '"a" is cut off'),
    "cut off in a name": (b"\x81\xa5ab", "cut off"),
    "more after them": (pack({"a": 1}) + b"\x01", "1 bytes follow"),
    "a name that is a number": (pack({1: 1}), "not text"),
    "a name that is not UTF-8": (b"\x81\xa1\xff\x01", "not UTF-8"),
    "no name": (pack({"": 1}), "no name"),
    "a reserved name": (pack({".id": 1}), '".id".*reserved'),
    "the payload's name": (pack({"msg": 1}), '"msg".*payload'),
    "a control character": (pack({"a\tb": 1}), r'"a\\tb".*control'),
    "a name twice": (b"\x82\xa1a\x01\xa1a\x02", '"a" is there twice'),
    "a late name twice": (
        b"\xde\x00\x15" + b"".join(pack(f"n{i % 20}") + b"\x01" for i in range(21)),
        '"n0" is there twice',
    ),
    "too many": (pack({f"n{i}": i for i in range(256)}), "256.*255"),
    "an extension": (pack({"t": msgspec.msgpack.Ext(5, b"x")}), '"t".*extension'),
    "an extension in a list": (pack({"t": [[msgspec.msgpack.Ext(5, b"x")]]}), '"t".*extension'),
    "too deep": (pack({"d": nested(17)}), '"d".*deep'),
    "text that is not UTF-8": (b"\x81\xa1a\xa1\xff", '"a".*UTF-8'),
    "a key that is a number": (pack({"m": {1: 2}}), '"m".*key'),
    "a length without end": (b"\x81\xa1a\xdd\xff\xff\xff\xff\x01", '"a" is cut off'),
}


@pytest.mark.parametrize("name", FIELDS)
def test_these_are_no_fields(name: str) -> None:
    raw, text = FIELDS[name]
    with pytest.raises(errors.InvalidFields, match=text) as caught:
        _core.check_fields(raw)
    assert caught.value.code == errors.Code.INVALID_FIELDS
    rules = _core.Rules(b"")
    assert not rules.matches("t", raw, b"")
    assert rules.errors == 1


@pytest.mark.parametrize(
    "fields", [{"d": nested(16)}, {f"n{i}": i for i in range(255)}, {"a b/é": None}, {"x": {"y": {}}}]
)
def test_these_are_fields(fields: dict[str, Any]) -> None:
    _core.check_fields(pack(fields))
    _core.check_fields(b"")


RULES = {
    "not MessagePack": (b"\xc1", "MessagePack"),
    "not a map": (pack([]), "map"),
    "cut off": (wire(("a", "eq", "b"))[:-1], "sound"),
    "more after them": (wire() + b"\x01", "sound"),
    "an unknown key": (pack({"where": [], "when": 1}), "unknown key.*when"),
    "where is no list": (pack({"where": {}}), "where"),
    "a rule that is no list": (pack({"where": ["a"]}), r"\[name, op, argument\]"),
    "a rule of two": (wire(("a", "any")), r"\[name, op, argument\]"),
    "a name that is no text": (wire((1, "any", None)), "text"),
    "an unknown op": (wire(("a", "like", "b")), '"a".*unknown op "like"'),
    "a reserved name": (wire((".x", "any", None)), '".x".*reserved'),
    "no name": (wire(("", "eq", 1)), "no name"),
    "any of something": (wire(("a", "any", 1)), '"a".*nil'),
    "in a text": (wire(("a", "in", "abc")), '"a".*list'),
    "glob of a number": (wire(("a", "glob", 1)), '"a".*"glob" takes a text'),
    "glob of the time": (wire((".ts", "glob", "1*")), r"\.ts is a number"),
    "re of the time": (wire((".ts", "re", "1")), r"\.ts is a number"),
    "a payload equal to a number": (wire(("msg", "eq", 1)), "payload.*text or bytes"),
    "a payload in numbers": (wire(("msg", "in", ["a", 1])), "payload.*text or bytes"),
    "a regular expression that does not compile": (wire(("a", "re", "(")), '(?s)"a".*unclosed group'),
    "a regular expression that slips out": (wire(("a", "re", "a)|(?:b")), "unopened group"),
    "a regular expression that is too large": (wire(("a", "re", "(?:a{1000}){1000}")), "(?i)size"),
    "looking around": (wire(("a", "re", "a(?=b)")), "look-around"),
    "an expression that does not parse": (wire(("a", "cel", "value >\n 1 +")), '"a": line 2, column 5: '),
    "an unknown function": (wire(("", "cel", "a == 1 &&\n b == f(1)")), r"line 2, column 8: there is no function f\(\)"),
    "an expression that is too long": (wire(("a", "cel", f"value == '{'x' * 4096}'")), "4107 bytes, 4096"),
    "value of the whole message": (wire(("", "cel", "value > 1")), "line 1, column 1: value is the field"),
    "loops in loops": (wire(("a", "cel", "value.all(x, value.all(y, x == y))")), "nested"),
    "a pattern that is made": (wire(("a", "cel", "value.matches(topic)")), '"re"'),
    "extra is a text": (pack({"where": [], "extra": "a"}), "extra"),
    "extra has a number": (pack({"where": [], "extra": [1]}), "extra"),
    "too many": (wire(*[("a", "any", None)] * 65), "65 rules, 64"),
    "too large": (wire(("a", "eq", "x" * 65536)), "65536 are allowed"),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_these_are_no_rules(name: str) -> None:
    raw, text = RULES[name]
    with pytest.raises(errors.InvalidRule, match=text) as caught:
        _core.Rules(raw)
    assert caught.value.code == errors.Code.INVALID_RULE


def test_the_most_rules_there_may_be() -> None:
    rules = _core.Rules(wire(*[("a", "any", None)] * 64))
    assert rules.matches("t", pack({"a": 1}), b"")


def test_no_rules_hold_always() -> None:
    for raw in (b"", pack({}), wire(), wire(extra=None)):
        assert _core.Rules(raw).matches("t", pack({"a": 1}), b"x")


def test_rules_on_what_is_no_field() -> None:
    def asked(*rule: Any) -> bool:
        return _core.Rules(wire(rule)).matches("a/b", b"", b"h\xc3\xa9", "", 0xABC, 1_700_000_000_000_000_000)

    assert asked(".id", "eq", "0000000000000abc")
    assert asked(".id", "glob", "*abc")
    assert asked(".ts", "eq", 1_700_000_000_000_000_000)
    assert asked(".ts", "cel", "value > 1700000000000000000 - 1 && time.getFullYear() == 2023")
    assert asked("msg", "eq", "hé")
    assert asked("msg", "in", ["x", b"h\xc3\xa9"])
    assert asked("msg", "re", "h.")
    assert asked("msg", "cel", "value == 'hé' && payload == b'h\\303\\251' && value == text")
    assert asked("", "cel", "topic == 'a/b' && sender.endsWith('abc') && size(fields) == 0")


@pytest.mark.parametrize("op", ["glob", "re"])
def test_a_payload_that_is_not_text_matches_no_pattern(op: str) -> None:
    rules = _core.Rules(wire(("msg", op, "*" if op == "glob" else "(?s).*")))
    assert rules.matches("t", b"", b"text")
    assert not rules.matches("t", b"", b"\xff")
    assert rules.errors == 0


def test_what_an_expression_gets_wrong_is_counted_and_what_is_absent_is_not() -> None:
    rules = _core.Rules(wire(("", "cel", "price > 3")))
    assert rules.matches("t", pack({"price": 4.5}), b"")
    assert not rules.matches("t", pack({"size": 4}), b"")
    assert rules.errors == 0
    assert not rules.matches("t", pack({"price": "high"}), b"")
    assert rules.errors == 1
    rules = _core.Rules(wire(("price", "cel", "value + 1")))
    assert not rules.matches("t", pack({"price": 1}), b"")
    assert rules.errors == 1


def test_the_page_lists_the_ops() -> None:
    """Every op of the page compiles, so that the page and the engine can't drift apart unseen."""
    text = page.PAGE.read_text(encoding="utf-8").partition("| op | argument | holds if the value |")[2]
    ops = [row.split("|")[1].strip(" `") for row in text.partition("\n\n")[0].splitlines()[2:]]
    arguments = {"eq": 1, "in": [1], "glob": "a", "re": "a", "any": None, "cel": "true"}
    assert sorted(ops) == sorted(arguments)
    for op in ops:
        _core.Rules(wire(("a", op, arguments[op])))
