"""Python values become fields and rules, or an error that names the field, before anything is sent."""

import copy
import enum
import pickle
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import busway
from busway import _core
from busway.fields import compile_where, encode_fields


class Venue(enum.StrEnum):
    KRK = "krk"


class Side(enum.Enum):
    BUY = 1


class Name(str):
    __slots__ = ()


@dataclass
class Sent:
    """What rules see of a message."""

    fields: dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""
    sender: str = ""
    id: str = "0000000000000abc0000000000000001"
    time_ns: int = 7


def rules(where: Any, extra: Any = None) -> Any:
    wire = compile_where(where, extra).wire
    return msgspec.msgpack.decode(wire) if wire else None


def matches(where: Any, fields: Any = None, payload: bytes = b"", extra: Any = None) -> bool:
    return _core.Rules(compile_where(where, extra).wire).matches("t", encode_fields(fields or {}), payload)


def test_values_of_fields() -> None:
    given = {"s": "x", "i": -1, "f": 1.5, "b": True, "n": None, "raw": b"\xff", "l": [1, ("a", b"b")], "m": {"k": [1]}}
    more = {
        "venue": Venue.KRK,
        "side": [Side.BUY],
        "name": Name("n"),
        "array": bytearray(b"a"),
        "view": memoryview(b"v"),
    }
    found = msgspec.msgpack.decode(encode_fields({**given, **more}))
    assert found == {
        **given, "l": [1, ["a", b"b"]], "venue": "krk", "side": [1], "name": "n", "array": b"a", "view": b"v",
    }  # fmt: skip
    assert encode_fields({}) == b""


@pytest.mark.parametrize(
    ("fields", "name", "text"),
    [
        ({"good": 1, "bad": {1, 2}}, "bad", "set.*give a list"),
        ({"when": datetime.now(UTC)}, "when", "datetime"),
        ({"thing": object()}, "thing", "object"),
        ({"in": [1, [object()]]}, "in", "object"),
        ({"big": 1 << 64}, "big", "(?i)int"),
        ({"half": "\ud800"}, "half", "surrogates"),
        ({".id": 1}, ".id", "reserved"),
        ({"msg": b"x"}, "msg", "payload"),
        ({"": 1}, "", "no name"),
        ({"a\nb": 1}, "a\nb", "control"),
        ({1: 1}, "1", "name of a field must be a str"),
        ({"m": {1: 2}}, "m", "key"),
        ({f"n{i}": i for i in range(256)}, "", "256"),
    ],
)
def test_what_is_no_field(fields: Any, name: str, text: str) -> None:
    with pytest.raises(busway.InvalidFields, match=text) as caught:
        encode_fields(fields)
    assert caught.value.name == name
    assert caught.value.code == 27
    assert isinstance(caught.value, ValueError)


def test_a_list_that_holds_itself_is_an_error() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(busway.InvalidFields, match="deep") as caught:
        encode_fields({"x": endless})
    assert caught.value.name == "x"


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"k": value}], ids=["lists", "dicts"])
def test_how_deep_fields_and_rules_may_be_nested(wrap: Any) -> None:
    value: Any = 1
    for depth in range(1, 20):
        value = wrap(value)
        text = "field 'x' is nested too deep: at most 16 levels of lists and dicts are allowed, 13 in a rule"
        if depth <= 16:
            encode_fields({"x": value})
        else:
            with pytest.raises(busway.InvalidFields, match=f"^{text}$"):
                encode_fields({"x": value})
        if depth <= 13:
            compile_where({"x": value})
        else:
            with pytest.raises(busway.InvalidRule, match=f"^rule for 'x': {text}$"):
                compile_where({"x": value})


def test_how_many_and_how_large_rules_may_be() -> None:
    compile_where({f"f{number}": number for number in range(64)})
    with pytest.raises(busway.InvalidRule, match="65 rules, 64 are allowed"):
        compile_where({f"f{number}": number for number in range(65)})
    with pytest.raises(busway.InvalidRule, match="65536 are allowed"):
        compile_where({"a": "x" * 65_536})


def test_the_kind_of_a_rule_is_that_of_its_value() -> None:
    def sure(value: object) -> bool:
        return bool(value)

    where = {
        "glob": "a*", "glob2": "a?", "list": ["a", 1], "tuple": ("a",), "set": {"a"}, "any": busway.ANY, "call": sure,
        "re": re.compile("a+", re.IGNORECASE), "expr": busway.expr("value > 1"), "eq": "a", "one": 1, "float": 1.0, "true": True,
        "none": None, "raw": b"a*", "map": {"k": 1}, "enum": Venue.KRK, "enums": [Side.BUY], "name": Name("n"),
    }  # fmt: skip
    assert rules(where)["where"] == [
        ["glob", "glob", "a*"], ["glob2", "glob", "a?"], ["list", "in", ["a", 1]], ["tuple", "in", ["a"]], ["set", "in", ["a"]],
        ["any", "any", None], ["call", "any", None], ["re", "re", "(?i:a+)"], ["expr", "cel", "value > 1"], ["eq", "eq", "a"],
        ["one", "eq", 1], ["float", "eq", 1.0], ["true", "eq", True], ["none", "eq", None], ["raw", "eq", b"a*"],
        ["map", "eq", {"k": 1}], ["enum", "eq", "krk"], ["enums", "in", [1]], ["name", "eq", "n"],
    ]  # fmt: skip
    compiled = compile_where(where)
    assert compiled.predicates == (("call", sure),)
    assert compiled.local
    assert compiled.extra is None
    assert not compile_where({"a": 1}).local
    assert compile_where().wire == compile_where({}).wire == b""


def test_a_whole_message_and_extra_names() -> None:
    assert rules(busway.expr("a > b")) == {"where": [["", "cel", "a > b"]], "extra": None}
    assert rules({"a": 1}, {"c", "b"}) == {"where": [["a", "eq", 1]], "extra": ["b", "c"]}
    assert rules(None, []) == {"where": [], "extra": []}
    assert matches({"a": 1}, {"a": 1, "b": 2}, extra={"b"})
    assert not matches({"a": 1}, {"a": 1, "c": 2}, extra={"b"})


def test_the_payload_is_compared_as_it_would_be_sent() -> None:
    assert matches({"msg": "text"}, payload=b"text")
    assert matches({"msg": b"\xff"}, payload=b"\xff")
    assert matches({"msg": {"a": [1, None]}}, payload=b'{"a":[1,null]}')
    assert matches({"msg": [1, "x"]}, payload=b"1")
    assert matches({"msg": [1, "x"]}, payload=b"x")
    assert matches({"msg": "t*"}, payload=b"text")
    assert not matches({"msg": 1}, payload=b"1.0")


@pytest.mark.parametrize(
    ("where", "name", "text"),
    [
        ({"a": 1, "b": object()}, "b", "object"),
        ({"b": [1, object()]}, "b", "object"),
        ({"b": 1 << 64}, "b", "(?i)int"),
        ({"msg": object()}, "msg", "object"),
        ({".x": 1}, ".x", "reserved"),
        ({"": 1}, "", r"^the rule 1 has no name: name its field.*busway\.expr"),
        (
            {"b": ["x", re.compile("x")]},
            "b",
            "^rule for 'b': a list contains the allowed values.*not regular expressions; a field has one rule$",
        ),
        ({"b": [busway.ANY]}, "b", "a list contains the allowed values.*not busway.ANY"),
        ({"b": {busway.expr("value > 1")}}, "b", "a list contains the allowed values.*not expressions"),
        ({"b": (len,)}, "b", "a list contains the allowed values.*not functions"),
        ({1: 1}, "1", "must be a str"),
        ({"a": 1, "b": busway.expr("value >")}, "b", "line 1, column 8"),
        (busway.expr("a ==\n b c"), "", "line 2, column 4"),
        ({".ts": "1*"}, ".ts", "number"),
        ({"b": re.compile(b"x")}, "b", "not bytes"),
        ({"b": re.compile("x", re.ASCII)}, "b", "re.ASCII"),
        ({"b": re.compile("a(?=b)")}, "b", "lookaround.*Rust"),
        ({"b": re.compile("(?<!a)b")}, "b", "lookaround"),
        ({"b": re.compile(r"(a)\1")}, "b", "reference"),
        ({"b": re.compile("(?P<x>a)(?P=x)")}, "b", "reference to a group"),
        ({"b": re.compile("(?>a)b")}, "b", "atomic"),
        ({"b": re.compile("a*+b")}, "b", "possessive"),
        ({"b": re.compile("a{2,3}+b")}, "b", "possessive"),
        ({"b": re.compile("a{b")}, "b", "repetition"),
        ("a*", "", "where=.*str"),
        ([("a", 1)], "", "where=.*list"),
    ],
)
def test_what_is_no_rule(where: Any, name: str, text: str) -> None:
    with pytest.raises(busway.InvalidRule, match=f"(?s){text}") as caught:
        compile_where(where)
    assert caught.value.name == name
    assert caught.value.code == 26
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "extra", ["abc", [1], 5, True, b"abc", (name for name in "ab")], ids=lambda extra: type(extra).__name__
)
def test_what_is_no_extra(extra: Any) -> None:
    with pytest.raises(busway.InvalidRule, match=r"extra= takes a set or list with the names.*or a function.*, not "):
        compile_where(None, extra)


def test_an_expression_is_text() -> None:
    with pytest.raises(TypeError, match="int"):
        busway.expr(1)  # type: ignore[arg-type]
    assert str(busway.expr("a > 1")) == "a > 1"
    assert busway.expr("a") == busway.expr("a")


def test_any_is_one_thing() -> None:
    assert repr(busway.ANY) == "busway.ANY"
    assert copy.deepcopy(busway.ANY) is busway.ANY
    assert pickle.loads(pickle.dumps(busway.ANY)) is busway.ANY


@pytest.mark.parametrize(
    "pattern",
    [
        re.compile("a.c"), re.compile("a.c", re.DOTALL), re.compile("A", re.IGNORECASE), re.compile("(?i)A"),
        re.compile("^a$\n^b$", re.MULTILINE), re.compile(r"a \ b [ #] c # and so on", re.VERBOSE), re.compile(r"\Aa\Z"),
        re.compile(r"[]a]+"), re.compile(r"[^]a]+"), re.compile(r"[\[a]+"), re.compile(r"[a\]&b]+"), re.compile(r"\<a\>"),
        re.compile(r"[(?=]+"), re.compile(r"\(\?=a"), re.compile(r"(?P<x>a|b)+"), re.compile(r"a+?b*?"), re.compile(r"\{a}+"),
        re.compile(r"[a\-]+\+"), re.compile(r"\d+\s\w"), re.compile("é"), re.compile(""), re.compile(r"[~a-c~]+"),
    ],
    ids=lambda pattern: repr(pattern.pattern),
)  # fmt: skip
def test_regular_expressions_mean_what_they_mean_in_python(pattern: re.Pattern[str]) -> None:
    texts = [
        "", "a", "A", "abc", "a\nc", "a\nb", "a b c", "a b#c", "a b  c", "]a", "b", "[a", "a&b", "<a>", "(?=", "(?=a", "ab", "abab",
        "{a}", "{a}}", "a-+", "1 x", "é", "~b", "&", "]&b",
    ]  # fmt: skip
    compiled = _core.Rules(compile_where({"x": pattern}).wire)
    for text in texts:
        expected = pattern.fullmatch(text) is not None
        assert compiled.matches("t", encode_fields({"x": text}), b"") is expected, text
    assert not compiled.matches("t", encode_fields({"x": 1}), b"")


def test_the_clients_part() -> None:
    seen: list[object] = []

    def note(value: object) -> object:
        seen.append(value)
        return 1

    where = {"a": note, ".id": note, ".ts": note, "msg": note, "b": 2}
    compiled = compile_where(where)
    reported: list[Exception] = []
    assert compiled.accepts(Sent({"a": 5, "b": 2}, b"x"), reported.append)
    assert seen == [5, "0000000000000abc", 7, b"x"]
    assert compiled.accepts(Sent({"a": 5}, sender="me"), reported.append)
    assert seen[5] == "me"
    assert not compile_where({"a": lambda value: value > 5}).accepts(Sent({"a": 5}), reported.append)
    assert not compile_where({"a": note}).accepts(Sent({}), reported.append)
    assert reported == []


def test_extra_fields_can_be_asked_of_a_callable() -> None:
    asked: list[Any] = []

    def only_instance(message: Any, names: list[str]) -> bool:
        asked.append((message, names))
        return names == ["instance"]

    compiled = compile_where({"event": "reload", "asset": busway.ANY}, only_instance)
    message = Sent({"event": "reload", "instance": 1, "asset": "fx"})
    assert compiled.accepts(message, asked.append)
    assert asked == [(message, ["instance"])]
    assert not compiled.accepts(Sent({"event": "reload", "asset": "fx"}), asked.append)


def test_a_predicate_that_raises_is_no_match_and_reported() -> None:
    reported: list[Exception] = []
    compiled = compile_where({"a": lambda value: value > 1})
    assert not compiled.accepts(Sent({"a": "text"}), reported.append)
    assert [type(error) for error in reported] == [TypeError]
    compiled = compile_where({}, lambda message, names: names[7])
    assert not compiled.accepts(Sent({"a": 1}), reported.append)
    assert [type(error) for error in reported] == [TypeError, IndexError]
