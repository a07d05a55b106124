"""Typed protocols: declaring them, publishing, requests, and payloads that don't fit."""

import asyncio
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import pydantic
import pytest

import busway
from busway.client.typed.protocol import kind_for, outgoing
from tests.support.net import Net


class Hello(busway.Protocol, prefix="hello"):
    name: str
    tags: list[str] = []


class Answer(busway.Protocol):
    text: str


class Ask(busway.Protocol[Answer], prefix="ask/me"):
    name: str


class AskPacked(busway.Protocol, prefix="packed", reply=int, encoding="msgpack"):
    data: bytes


@busway.protocol(prefix="plain", encoding="msgpack")
@dataclass
class Plain:
    number: int
    when: datetime


@busway.protocol(prefix="struct")
class Struct(msgspec.Struct):
    number: int
    child: "Struct | None" = None


class Inner(pydantic.BaseModel):
    amount: Decimal


class Model(pydantic.BaseModel):
    key: uuid.UUID
    inner: list[Inner]
    data: bytes = b""


busway.protocol(Model, prefix="model", encoding="msgpack", reply=Inner)


@pydantic.dataclasses.dataclass
class Checked:
    number: int


busway.protocol(Checked, prefix="checked")

VALUES = [
    Hello(name="Älice", tags=["a"]),
    Ask(name="x"),
    AskPacked(data=b"\x00\xff"),
    Plain(number=1, when=datetime(2026, 1, 2, tzinfo=UTC)),
    Struct(number=1, child=Struct(number=2)),
    Model(key=uuid.UUID(int=7), inner=[Inner(amount=Decimal("1.10"))], data=b"\xff"),
    Checked(number=3),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
async def test_every_kind_of_type_travels(net: Net, value):
    one, two = await net.connect(), await net.connect()
    kind = type(value)
    async with one.subscribe(kind, "alice/*") as subscription:
        await two.publish("alice/1", value)
        received = await subscription.recv(timeout=60)
    assert received.topic == f"{kind_for(kind).prefix}/alice/1"
    assert received.value == value
    assert type(received.value) is kind
    assert received.message.topic == received.topic
    topic, same = received
    assert (topic, same) == (received.topic, value)


@pytest.mark.parametrize(
    ("prefix", "topic", "full"),
    [
        ("hello", "", "hello"),
        ("hello", "alice", "hello/alice"),
        ("hello", "/alice", "hello/alice"),
        ("/a/b", "c/*", "a/b/c/*"),
        ("hello", "**", "hello/**"),
        ("", "alice", "alice"),
        ("", "", ""),
    ],
)
def test_topics(prefix, topic, full):
    made = busway.protocol(msgspec.defstruct("Made", ["x"]), prefix=prefix)
    assert kind_for(made).topic(topic) == full


def test_regular_expressions_stay_below_the_prefix():
    pattern = kind_for(Ask).pattern("re:a|b")
    assert busway.matches(pattern, "ask/me/a")
    assert busway.matches(pattern, "ask/me/b")
    assert not busway.matches(pattern, "b")
    assert not busway.matches(pattern, "ask/me/ab")


async def test_topic_empty_is_the_prefix_alone(net: Net):
    bus = await net.connect()
    async with bus.subscribe(Hello, "") as subscription:
        await bus.publish("alice", Hello(name="not this one"))
        await bus.publish("", Hello(name="this one"))
        assert (await subscription.recv(timeout=60)) == ("hello", Hello(name="this one"))


async def test_publish_many_and_push_take_values(net: Net):
    bus = await net.connect()
    async with bus.subscribe(Hello, "**") as subscription:
        assert await bus.publish_many("a", [Hello(name="1"), Hello(name="2")]) == 2
        assert await bus.publish_many([("b", Hello(name="3")), ("hello/c", b'{"name":"4"}')]) == 2
        await bus.push("d", Hello(name="5"))
        await bus.flush()
        found = []
        while len(found) < 5:
            found += await subscription.take(timeout=5)
    assert [(topic, value.name) for topic, value in found] == [
        ("hello/a", "1"),
        ("hello/a", "2"),
        ("hello/b", "3"),
        ("hello/c", "4"),
        ("hello/d", "5"),
    ]


@pytest.mark.parametrize(
    ("payload", "field", "reason"),
    [
        (b'{"name":5}', "name", "Expected `str`, got `int`"),
        (b'{"name":"a","tags":["b",7]}', "tags[1]", "Expected `str`, got `int`"),
        (b"{}", "name", "missing required field"),
        (b"[1]", "", "Expected `object`, got `array`"),
        (b'{"name":', "", "truncated"),
        (b"", "", "truncated"),
        (b"\xff\xfe", "", "malformed"),
    ],
)
async def test_a_payload_that_does_not_fit_names_field_and_topic(net: Net, payload, field, reason):
    bus = await net.connect()
    async with bus.subscribe(Hello, "**") as subscription:
        await bus.publish("hello/bad", payload)
        await bus.publish("good", Hello(name="next"))
        with pytest.raises(busway.PayloadError) as caught:
            await subscription.recv(timeout=60)
        assert (caught.value.topic, caught.value.field) == ("hello/bad", field)
        assert reason in caught.value.reason
        assert "hello/bad" in str(caught.value)
        assert "Hello" in str(caught.value)
        assert isinstance(caught.value, ValueError)
        assert (await subscription.recv(timeout=60)).value.name == "next"


async def test_pydantic_names_the_field_too(net: Net):
    bus = await net.connect()
    async with bus.subscribe(Model, "") as subscription:
        packed = msgspec.msgpack.encode({"key": str(uuid.UUID(int=1)), "inner": [{"amount": 1}, {"amount": "x"}]})
        await bus.publish("model", packed)
        with pytest.raises(busway.PayloadError) as caught:
            await subscription.recv(timeout=60)
    assert caught.value.field == "inner[1].amount"


async def test_iteration_goes_on_after_a_payload_that_does_not_fit(net: Net):
    bus = await net.connect()
    async with bus.subscribe(Hello, "**") as subscription:
        await bus.publish_many("hello/x", ['{"name":"1"}', "bad", '{"name":"2"}', "worse", '{"name":"3"}'])
        names, errors = [], 0
        while len(names) < 3:
            try:
                async for _, hello in subscription:
                    names.append(hello.name)
                    if len(names) == 3:
                        break
            except busway.PayloadError:
                errors += 1
        assert (names, errors) == (["1", "2", "3"], 2)


async def test_batches_are_cut_where_a_payload_does_not_fit(net: Net):
    bus = await net.connect()
    async with bus.subscribe(Hello, "**") as subscription:
        await bus.publish_many("hello/x", ['{"name":"1"}', '{"name":"2"}', "bad", '{"name":"3"}'])
        await bus.flush()
        seen: list[object] = []
        while len(seen) < 3:
            try:
                async for batch in subscription.batches():
                    seen.append([hello.name for _, hello in batch])
                    if len(seen) == 3:
                        break
            except busway.PayloadError as error:
                seen.append(error.topic)
        assert seen == [["1", "2"], "hello/x", ["3"]]
        assert subscription.pending == 0
        assert subscription.received == 4


async def test_batches_end_with_the_subscription(net: Net):
    bus = await net.connect()
    subscription = await bus.subscribe(Hello, "**")
    await bus.publish("x", Hello(name="1"))
    await bus.flush()
    await subscription.close()
    assert [len(batch) async for batch in subscription.batches()] == [1]
    assert [one async for one in subscription] == []
    assert subscription.closed


async def test_handler_gets_what_iteration_would_give(net: Net):
    errors: list[BaseException] = []
    bus = await net.connect(on_error=errors.append)
    got: list[busway.Received[Hello]] = []
    done = asyncio.Event()

    async def handler(received):
        got.append(received)
        done.set()

    async with bus.subscribe(Hello, "*", handler=handler):
        await bus.publish("hello/bad", b"1")
        await bus.publish("alice", Hello(name="Alice"))
        await done.wait()
    assert got == [("hello/alice", Hello(name="Alice"))]
    assert got[0].message.sender == bus.name
    assert [type(error) for error in errors] == [busway.PayloadError]


async def test_request_with_a_handler(net: Net):
    one, two = await net.connect(), await net.connect()

    def answer(ask: Ask) -> Answer:
        return Answer(text=f"Hello {ask.name}")

    async def measure(ask: AskPacked) -> int:
        return len(ask.data)

    async with one.serve(Ask, "", answer), one.serve(AskPacked, "size", handler=measure):
        assert await two.request("", Ask(name="Alice")) == Answer(text="Hello Alice")
        assert await two.request("size", AskPacked(data=b"123")) == 3


async def test_request_by_hand(net: Net):
    one, two = await net.connect(), await net.connect()
    async with one.serve(Ask, "x") as service, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(two.request("x", Ask(name="Alice")))
        request = await service.recv(timeout=60)
        assert (request.topic, request.value, request.message.kind) == ("ask/me/x", Ask(name="Alice"), "request")
        await request.reply(Answer(text="yes"))
        assert (await asking).text == "yes"

        failing = tasks.create_task(expect(busway.HandlerError, two.request("x", Ask(name="Bob"))))
        async for request in service:
            await request.fail("no")
            break
        assert (await failing).reason == "no"


async def expect(kind, work):
    with pytest.raises(kind) as caught:
        await work
    return caught.value


async def test_request_that_does_not_fit_reaches_the_requester_as_an_error(net: Net):
    errors: list[BaseException] = []
    one, two = await net.connect(on_error=errors.append), await net.connect()
    called = []
    async with one.serve(Ask, "", called.append):
        error = await expect(busway.HandlerError, two.request("ask/me", {"name": 5}))
    assert "'name'" in error.reason
    assert "'ask/me'" in error.reason
    async with one.serve(Ask, "") as service, asyncio.TaskGroup() as tasks:
        failing = tasks.create_task(expect(busway.HandlerError, two.request("ask/me", b"?")))
        fitting = tasks.create_task(service.recv(timeout=60))
        assert "'ask/me'" in (await failing).reason
        asking = tasks.create_task(two.request("", Ask(name="x")))
        await (await fitting).reply(Answer(text="still here"))
        assert (await asking).text == "still here"
    assert not called
    assert [type(error) for error in errors] == [busway.PayloadError] * 2


async def test_reply_of_the_wrong_type_is_an_error_for_the_requester(net: Net):
    one, two = await net.connect(), await net.connect()
    async with one.serve(Ask, "", lambda ask: {"text": "not an Answer"}):
        error = await expect(busway.HandlerError, two.request("", Ask(name="x")))
        assert "Answer" in error.reason
    async with one.serve("ask/me", lambda message: {"txet": "untyped"}):
        error = await expect(busway.PayloadError, two.request("", Ask(name="x")))
        assert (error.topic, error.field) == ("ask/me", "text")


async def test_what_can_not_be_encoded_names_the_topic(net: Net):
    bus = await net.connect()
    with pytest.raises(busway.PayloadError) as caught:
        await bus.publish("a/b", object())
    assert caught.value.topic == "a/b"
    with pytest.raises(busway.PayloadError):
        await bus.publish("x", Struct(number=object()))


def test_untyped_payloads():
    assert outgoing("t", bytearray(b"x")) == ("t", b"x")
    assert outgoing("t", memoryview(b"x")) == ("t", b"x")
    assert outgoing("t", {"a": [1, None]}) == ("t", b'{"a":[1,null]}')
    assert outgoing("t", Inner(amount=Decimal(1))) == ("t", b'{"amount":"1"}')
    assert outgoing("t", None) == ("t", b"null")


async def test_declarations_that_make_no_sense(net: Net):
    bus = await net.connect()

    class Base(busway.Protocol):
        at: int

    class Special(Base, prefix="special"):
        name: str

    class Below(Special):
        """No prefix of its own."""

    assert Special(at=1, name="x").at == 1
    for wrong in (Base, Below, int, "x"):
        with pytest.raises(TypeError, match="not a protocol"):
            kind_for(wrong)
    with pytest.raises(TypeError, match="not a protocol"):
        bus.subscribe(Base, "")
    with pytest.raises(TypeError, match="no reply type"):
        bus.serve(Hello, "", print)
    with pytest.raises(TypeError, match="no reply type"):
        await bus.request("", Hello(name="x"))
    with pytest.raises(busway.InvalidTopic):
        busway.protocol(Plain, prefix="a/*")
    with pytest.raises(ValueError, match="encoding"):
        busway.protocol(Plain, prefix="a", encoding="xml")
    with pytest.raises(TypeError, match="needs a prefix"):

        class Lost(busway.Protocol, reply=int):
            pass

    with pytest.raises(TypeError, match="different types"):

        class Twice(busway.Protocol[int], prefix="twice", reply=str):
            pass


def test_values_are_immutable():
    hello = Hello(name="x")
    with pytest.raises(AttributeError):
        hello.name = "y"
    assert hello == Hello(name="x")


async def test_serve_refuses_arguments_that_make_no_sense() -> None:
    async with busway.serve() as server, server.connect() as bus:
        for arguments in (("t", print, print), (Hello, "", print, print)):
            with pytest.raises(TypeError, match="handler"):
                bus.serve(*arguments)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="handler"):
            bus.serve("t", print, handler=print)  # type: ignore[call-overload]


async def test_start_and_close_as_the_untyped_forms(net: Net):
    bus = await net.connect()
    service = await bus.serve(Ask, "x", lambda ask: Answer(text=ask.name)).start()
    subscription = await bus.subscribe(Hello, "**").start()
    assert (await bus.request("x", Ask(name="Alice"), timeout=60)).text == "Alice"
    await bus.publish("a", Hello(name="Bob"))
    assert (await subscription.recv(timeout=60)).value.name == "Bob"
    with pytest.raises(busway.LocalProtocolError, match="has been entered already"):
        await service.start()
    await service.close()
    await subscription.close()
    assert service.closed
    assert subscription.closed
    with pytest.raises(busway.NoResponders):
        await bus.request("x", Ask(name="Alice"), timeout=60)


class Balance(pydantic.BaseModel):
    amount: int


class GetBalance(pydantic.BaseModel, busway.WithReply[Balance]):
    account: int


busway.protocol(GetBalance, prefix="balance", encoding="msgpack")


@busway.protocol(prefix="double")
@dataclass
class Double(busway.WithReply[int]):
    number: int


async def test_models_and_dataclasses_declare_their_reply(net: Net):
    one, two = await net.connect(), await net.connect()

    async def balance(request: GetBalance) -> Balance:
        return Balance(amount=request.account)

    async with one.serve(GetBalance, "", balance), one.serve(Double, "", lambda double: 2 * double.number):
        assert await two.request("", GetBalance(account=7)) == Balance(amount=7)
        assert await two.request("", Double(number=4)) == 8
        (reply,) = await two.request_all("", Double(number=5))
        assert (reply.topic, reply.value) == ("double", 10)


async def test_the_requester_names_the_type_of_the_reply(net: Net):
    one, two = await net.connect(), await net.connect()
    async with one.serve("sum", lambda message: sum(message.json())):
        assert await two.request("sum", [1, 2], reply=int) == 3
        with pytest.raises(busway.PayloadError, match="'sum'"):
            await two.request("sum", b"[1, 2]", reply=str)
        assert [one.value for one in await two.request_all("sum", [1], reply=int)] == [1]
        assert [one.value async for one in two.request_many("sum", b"[1]", reply=int)] == [1]


def test_a_reply_is_declared_once():
    with pytest.raises(TypeError, match="different types"):
        busway.protocol(Double, prefix="double", reply=str)
