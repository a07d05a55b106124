"""`-f` and `--where`: fields and rules as people write them."""

import json

import pytest
import typer

import busway
from busway.cli.common import field_flags


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("krk", "krk"),
        ("5", 5),
        ("-0.5", -0.5),
        ("true", True),
        ("null", None),
        ('"5"', "5"),
        ('["a", 1]', ["a", 1]),
        ('{"a": {"b": 1}}', {"a": {"b": 1}}),
        ("a=b", "a=b"),
        ("", ""),
        ("two words", "two words"),
        ("[not json", "[not json"),
    ],
)
def test_values_of_fields(text, value):
    made = field_flags.fields([f"name={text}", "other=x"])
    assert made == {"name": value, "other": "x"}
    assert type(made["name"]) is type(value)


def test_no_fields_and_no_rules():
    assert (
        field_flags.fields(None) is field_flags.fields([]) is field_flags.rules(None) is field_flags.rules([]) is None
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["name"], "name=value"),
        (["a=1", "a=2"], "given twice"),
        ([".id=x"], ".id"),
        (["msg=x"], "msg"),
        (["=x"], "no name"),
    ],
)
def test_what_is_no_field(given, text):
    with pytest.raises(typer.BadParameter, match=text):
        field_flags.fields(given)


def test_rules():
    made = field_flags.rules(["a=x", "b=h*", 'c=["x", 1]', "d", "e=re:h.b", "f=expr:value > 1", "g=5", "h=a=b"])
    assert isinstance(made, dict)
    regular = made.pop("e")
    assert regular.pattern == "h.b"
    assert made == {
        "a": "x",
        "b": "h*",
        "c": ["x", 1],
        "d": busway.ANY,
        "f": busway.expr("value > 1"),
        "g": 5,
        "h": "a=b",
    }
    assert field_flags.rules(['expr:fields.a == "b"']) == busway.expr('fields.a == "b"')


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["a=1", "a=2"], "two rules"),
        (["expr:true", "expr:false"], "join them with &&"),
        (["expr:true", "a=1"], "not both"),
        (["a=expr:value >"], "line 1, column 8"),
        (["expr:value >"], "line 1, column 8"),
        (["a=re:("], "not a regular expression"),
        (["a=re:(?=x)"], "lookaround"),
        (["=1"], "no name"),
    ],
)
def test_what_is_no_rule(given, text):
    with pytest.raises(typer.BadParameter, match=text):
        field_flags.rules(given)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"venue": "krk", "size": 5}, "venue=krk size=5"),
        ({"a": "5"}, 'a="5"'),
        ({"a": "two words"}, 'a="two words"'),
        ({"a": "new\nline"}, 'a="new\\nline"'),
        ({"c": "\x9b2K\x7f\u202e"}, 'c="\\u009b2K\\u007f\\u202e"'),
        ({"na\u2028me": 1}, "na\\u2028me=1"),
        ({"a": [1, None], "b": True}, "a=[1,null] b=true"),
        ({"a": b"\xff"}, 'a="/w=="'),
    ],
)
def test_fields_on_the_screen(fields, text):
    assert field_flags.shown(fields) == text


async def test_fields_of_what_is_sent(shell, bus):
    given = ("-f", "venue=krk", "--field", "size=5")
    async with (
        bus.subscribe("t", where={"venue": "krk", "size": 5}) as subscription,
        bus.serve("s", lambda message: message.fields),
    ):
        for verb, topic in (("pub", "t"), ("push", "t"), ("pin", "t")):
            done = await shell.run(verb, topic, "x", *given)
            assert (done.code, done.notes) == (0, ""), done.notes
            message = await subscription.recv(timeout=60)
            assert message.fields == {"venue": "krk", "size": 5}
        assert json.loads((await shell.run("req", "s", *given)).out) == {"venue": "krk", "size": 5}
        assert (await shell.run("pub", "t", "--lines", *given, stdin=b"1\n2\n")).code == 0
        assert [(await subscription.recv(timeout=60)).fields["size"] for _ in range(2)] == [5, 5]


@pytest.mark.parametrize("verb", ["pub", "push", "req", "post", "pin", "unpin"])
async def test_fields_are_checked_before_anything_is_sent(shell, bus, verb):
    async with bus.subscribe("**") as subscription:
        done = await shell.run(verb, "t", "-f", ".id=me")
        assert (done.code, done.out) == (2, b""), done.notes
        assert ".id" in done.notes
        assert "Traceback" not in done.notes
        await bus.flush()
        assert subscription.received == 0


SENT = [{"venue": "krk", "size": 5}, {"venue": "bin", "size": 6}, {"venue": "krk", "size": 7}, {}]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (["venue=krk"], "02"),
        (["venue=?i*"], "1"),
        (["size=[5, 6]"], "01"),
        (["size"], "012"),
        (["venue=krk", "size=expr:value > 6"], "2"),
        (["venue=re:k.k"], "02"),
        (["expr:'size' in fields && fields.size < 7"], "01"),
        ([".id=test", "msg=?"], "0123"),
        (["size=7.0"], ""),
    ],
    ids=" ".join,
)
async def test_where(shell, bus, rules, expected):
    for number, fields in enumerate(SENT):
        await bus.post(f"t/{number}", str(number), fields=fields)
    flags = [flag for rule in rules for flag in ("--where", rule)]
    listed = await shell.run("kept", "t/*", *flags, "--json")
    assert (listed.code, "".join(json.loads(line)["payload"] for line in listed.lines)) == (0, expected)


async def test_where_of_live_messages(shell, bus):
    sub = await shell.start("sub", "t", "-w", "venue=k*", "--where", "size=expr:value > 5", "--count", 2)
    await sub.ready()
    for number, fields in enumerate([*SENT, {"venue": "kid", "size": 8}]):
        await bus.publish("t", str(number), fields=fields)
    done = await sub.end()
    assert (done.code, done.lines) == (0, ["t [venue=krk size=7] 2", "t [venue=kid size=8] 4"])


async def test_fields_are_printed(shell, bus):
    forms = [("--format", "{fields}|{payload}"), ("--json",), ()]
    running = [await shell.start("sub", "t", "--count", 2, *form) for form in forms]
    for one in running:
        await one.ready()
    await bus.publish("t", b"1", fields={"venue": "krk", "deep": [1]})
    await bus.publish("t", b"2")
    formatted, objects, plain = [await one.end() for one in running]
    assert formatted.lines == ["venue=krk deep=[1]|1", "|2"]
    assert [json.loads(line).get("fields") for line in objects.lines] == [{"venue": "krk", "deep": [1]}, None]
    assert plain.lines == ["t [venue=krk deep=[1]] 1", "t 2"]


@pytest.mark.parametrize("verb", ["sub", "kept"])
async def test_a_rule_that_is_none(shell, verb):
    done = await shell.run(verb, "t", "--where", "a=expr:value >")
    assert (done.code, done.out) == (2, b"")
    assert "line 1, column 8" in done.notes
    assert "Traceback" not in done.notes
