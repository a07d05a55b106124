"""The engine's rules agree with the models of tests/support/rules.py."""

import fnmatch
import random
import warnings
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from busway import _core, errors
from tests.support import rules as model
from tests.support.strength import examples

TEXTS = ["", "a", "ab", "abc", "b-c", "é", "A", "*", "long " * 10]
SCALARS = [
    None,
    True,
    False,
    0,
    1,
    2,
    -1,
    -200,
    300,
    1 << 40,
    -(1 << 40),
    (1 << 64) - 1,
    0.0,
    1.0,
    -1.5,
    0.1,
    float("nan"),
    *TEXTS,
    b"",
    b"a",
]
NAMES = ["x", "y", "z.w", "é"]
GLOBS = ["*", "?", "a*", "*b*", "[ab]*", "[!a]", "*-?", "a?c", "", "[", "[b-a]*"]
REGEXES = [".*", "a+", "[ab]+c?", "", "(?i)A", "a|b-c", "é", "long .*"]


def value(choose: random.Random, depth: int = 0) -> Any:
    kind = choose.random()
    if depth < 3 and kind < 0.15:
        return [value(choose, depth + 1) for _ in range(choose.randint(0, 3))]
    if depth < 3 and kind < 0.2:
        return {choose.choice(TEXTS): value(choose, depth + 1) for _ in range(choose.randint(0, 3))}
    return choose.choice(SCALARS)


def rule(choose: random.Random, known: list[Any]) -> model.Rule:
    name = choose.choice([*NAMES, *NAMES, ".id", ".ts", "msg"])
    op = choose.choice(["eq", "in", "glob", "re", "any"] if name != ".ts" else ["eq", "in", "any"])

    def wanted() -> Any:
        if name == "msg":
            return choose.choice([*TEXTS, b"a", b"\xff"])
        if name == ".id":
            return choose.choice(TEXTS)
        return choose.choice([*known, value(choose)]) if choose.random() < 0.7 else value(choose)

    argument = {
        "eq": wanted,
        "in": lambda: [wanted() for _ in range(choose.randint(0, 12))],
        "glob": lambda: choose.choice(GLOBS),
        "re": lambda: choose.choice(REGEXES),
        "any": lambda: None,
    }[op]()
    return name, op, argument


def test_thirty_thousand_random_messages_and_rules_agree_with_the_model() -> None:
    choose = random.Random(7420)
    hits = 0
    for _ in range(30_000):
        fields = {name: value(choose) for name in choose.sample(NAMES, choose.randint(0, 4))}
        rules = [rule(choose, [*fields.values(), 7]) for _ in range(choose.choice([0, 1, 1, 1, 2, 3]))]
        extra = choose.choice([None, None, choose.sample(NAMES, 2)])
        message = {
            "sender": choose.choice(TEXTS[1:]),
            "time": choose.choice([7, -1, 300]),
            "payload": choose.choice([b"", b"a", b"abc", b"\xff"]),
        }
        expected = model.all_hold(rules, extra, fields, **message)
        hits += expected
        compiled = _core.Rules(model.wire(*rules, extra=extra))
        for packed in (msgspec.msgpack.encode(fields), model.loose(fields, choose)):
            got = compiled.matches("t", packed, message["payload"], message["sender"], 5, message["time"])
            assert got is expected, (rules, extra, fields, message)
        assert compiled.errors == 0
    assert 6_000 < hits < 24_000  # the sample says something about both answers


def test_equalities_are_in_normal_form_and_sorted() -> None:
    choose = random.Random(1)
    for _ in range(2_000):
        wanted = {name: value(choose) for name in choose.sample(NAMES, 3)}
        raw = b"\x81\xa5where\x93" + b"".join(
            b"\x93" + model.loose(name, choose) + b"\xa2eq" + model.loose(each, choose) for name, each in wanted.items()
        )
        found = _core.Rules(raw).equalities
        assert [name for name, _ in found] == sorted(wanted, key=str.encode)
        for name, packed in found:
            assert model.same(msgspec.msgpack.decode(packed), wanted[name])
            assert packed == msgspec.msgpack.encode(ordered(wanted[name]))


def ordered(value: Any) -> Any:
    """As the normal form has it: sorted keys, no sign on zero."""
    if isinstance(value, dict):
        return {key: ordered(value[key]) for key in sorted(value, key=str.encode)}
    if isinstance(value, list):
        return [ordered(item) for item in value]
    return value + 0.0 if isinstance(value, float) else value


pieces = st.sampled_from([*"ab*?[]!-^é\\&~|", "[!a]", "[a-b]", "[!", "[^", "b-a", "[b-a!"])
globs = st.lists(pieces, max_size=7).map("".join)


@given(globs, st.lists(st.text("ab-!]^[é\\\n", max_size=5), max_size=8))
@settings(max_examples=examples(3000))
def test_globs_are_those_of_fnmatch(pattern: str, texts: list[str]) -> None:
    compiled = _core.Rules(model.wire(("x", "glob", pattern)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # brackets that the next Python might read otherwise
        for text in texts:
            expected = fnmatch.fnmatchcase(text, pattern)
            assert compiled.matches("", msgspec.msgpack.encode({"x": text}), b"") is expected, (pattern, text)


packable = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def control(letter: str) -> bool:
    return ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0


@given(st.dictionaries(st.text(max_size=4) | st.sampled_from(["msg", ".x", "a\n", ""]), packable, max_size=5))
@settings(max_examples=examples(400))
def test_what_are_fields(fields: dict[str, Any]) -> None:
    packed = msgspec.msgpack.encode(fields)
    if all(name and not name.startswith(".") and name != "msg" and not any(map(control, name)) for name in fields):
        _core.check_fields(packed)
        compiled = _core.Rules(model.wire(*[(name, "eq", each) for name, each in fields.items()]))
        assert compiled.matches("", packed, b"")
    else:
        with pytest.raises(errors.InvalidFields):
            _core.check_fields(packed)


@given(st.binary(max_size=40))
@settings(max_examples=examples(1500))
def test_what_the_engine_takes_for_fields_others_can_read(raw: bytes) -> None:
    try:
        _core.check_fields(raw)
    except errors.InvalidFields as error:
        assert error.reason
    else:
        assert not raw or isinstance(msgspec.msgpack.decode(raw), dict)


terms = st.sampled_from(
    [
        ("a < b", lambda a, b, s: a < b),
        ("a == 1", lambda a, b, s: a == 1),
        ("b == 1.0", lambda a, b, s: b == 1),
        ("a + b >= 2", lambda a, b, s: a + b >= 2),
        ("a in [0, 2]", lambda a, b, s: a in [0, 2]),
        ("s.startsWith('x')", lambda a, b, s: s.startswith("x")),
        ('s.contains("y")', lambda a, b, s: "y" in s),
        ("s.matches('^x*$')", lambda a, b, s: set(s) <= {"x"}),
        ("size(s) > 1", lambda a, b, s: len(s) > 1),
        ("[a, b].exists(n, n == 2)", lambda a, b, s: 2 in (a, b)),
        ("fields.a % 2 == 0", lambda a, b, s: a % 2 == 0),
        ("has(fields.s)", lambda a, b, s: True),
    ]
)
trees = st.recursive(
    terms,
    lambda inner: st.one_of(
        inner.map(lambda one: (f"!({one[0]})", lambda *m: not one[1](*m))),
        st.tuples(inner, inner).map(
            lambda two: (f"({two[0][0]} && {two[1][0]})", lambda *m: two[0][1](*m) and two[1][1](*m))
        ),
        st.tuples(inner, inner).map(
            lambda two: (f"({two[0][0]} || {two[1][0]})", lambda *m: two[0][1](*m) or two[1][1](*m))
        ),
    ),
    max_leaves=6,
)


@given(trees, st.integers(0, 3), st.integers(0, 3), st.text("xy", max_size=3))
@settings(max_examples=examples(800))
def test_expressions(tree: tuple[str, Any], a: int, b: int, s: str) -> None:
    text, expected = tree
    compiled = _core.Rules(model.wire(("", "cel", text)))
    packed = msgspec.msgpack.encode({"a": a, "b": b, "s": s})
    assert compiled.matches("", packed, b"") is expected(a, b, s), text
    assert compiled.errors == 0


@given(st.text(max_size=40) | st.text("ab.()[]{}'\"!?:&|<>=+-*/%, 01\\\n", max_size=60))
@settings(max_examples=examples(800))
def test_any_text_is_an_expression_or_an_error(text: str) -> None:
    try:
        compiled = _core.Rules(model.wire(("x", "cel", text)))
    except errors.InvalidRule as error:
        assert "line " in error.reason
        return
    assert compiled.matches("t", msgspec.msgpack.encode({"x": 1, "a": "b"}), b"") in (True, False)
