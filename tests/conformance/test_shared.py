"""Shared services: asked first, the first willing one answers, and if it fails the next."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import busway
from busway.client.typed.protocol import Protocol
from tests.support.net import PATIENCE, Net, settle, until, within

pytestmark = pytest.mark.both_loops


class Answer(Protocol):
    text: str


class Question(Protocol[Answer], prefix="question"):
    text: str


def says(text: str) -> Callable[[busway.Message], str]:
    return lambda message: text


async def test_shared_services_stand_beside_each_other(net: Net) -> None:
    one, two, client = await net.connect("one"), await net.connect("two"), await net.connect()
    async with one.serve("s", says("1"), shared=True):
        async with two.serve("s", says("2"), shared=True), one.serve("s", says("3"), shared=True):
            with pytest.raises(busway.ServiceTaken):
                await two.serve("s", says("exclusive"))
            assert {(await client.request("s")).text for _ in range(20)} <= {"1", "2", "3"}
        assert (await client.request("s")).text == "1"
    with pytest.raises(busway.NoResponders):
        await client.request("s")
    async with two.serve("s", says("alone")):
        with pytest.raises(busway.ServiceTaken):
            await one.serve("s", says("1"), shared=True)


async def test_the_broker_asks_whether_they_are_interested(net: Net) -> None:
    """ "O broker pergunta aos providers especificos se estão interessados em responder"; they see the whole request."""
    server, client = await net.connect(), await net.connect("client")
    asked: list[busway.Message] = []

    def ask(message: busway.Message) -> bool:
        asked.append(message)
        return True

    async with server.serve("dtc", says("mine"), shared=True, ask=ask):
        assert (await client.request("dtc", b"17", fields={"pole": 2})).text == "mine"
    (message,) = asked
    assert (message.topic, message.payload, message.fields, message.kind) == ("dtc", b"17", {"pole": 2}, "request")
    assert message.sender == "client"


@pytest.mark.parametrize("later", [False, True], ids=["plain", "coroutine"])
async def test_false_is_not_followed_up(net: Net, later: bool) -> None:
    """ "Os providers respondem "true" se estão interessados ou "false" se não. Às respostas "false" não é dado seguimento." """
    one, two, client = await net.connect("one"), await net.connect("two"), await net.connect()
    handled: list[str] = []

    def owner(first: str, name: str) -> tuple[Callable[[busway.Message], object], Callable[[busway.Message], object]]:
        def ask(message: busway.Message) -> bool:
            return message.text.startswith(first)

        async def ask_later(message: busway.Message) -> bool:
            await asyncio.sleep(0)
            return ask(message)

        def handler(message: busway.Message) -> str:
            handled.append(name)
            return name

        return handler, ask_later if later else ask

    (of_one, one_asks), (of_two, two_asks) = owner("1", "one"), owner("2", "two")
    async with (
        one.serve("dtc", of_one, shared=True, ask=one_asks),
        two.serve("dtc", of_two, shared=True, ask=two_asks),
    ):
        for dtc in ("11", "12", "21", "13", "22"):
            assert (await client.request("dtc", dtc)).text == {"1": "one", "2": "two"}[dtc[0]]
        with pytest.raises(busway.NoResponders):
            await client.request("dtc", "31")
    assert handled == ["one", "one", "two", "one", "two"]


async def test_the_first_to_say_true_gets_the_request_and_a_later_true_is_ignored(net: Net) -> None:
    """ "O primeiro cliente a responder "true", será o que irá processar o request"; "Após uma resposta com sucesso, as respostas "true"
    dos restantes clientes serão ignoradas." """
    one, two, client = await net.connect("one"), await net.connect("two"), await net.connect()
    gate, asked = asyncio.Event(), asyncio.Event()
    handled: list[str] = []

    async def slow(message: busway.Message) -> bool:
        asked.set()
        await gate.wait()
        return True

    async def quick(message: busway.Message) -> bool:
        await asked.wait()
        return True

    async with (
        one.serve("s", lambda message: handled.append("one"), shared=True, ask=slow),
        two.serve("s", lambda message: handled.append("two"), shared=True, ask=quick),
    ):
        await client.request("s", timeout=PATIENCE)
        gate.set()
        await settle(one, client)
        assert handled == ["two"]


async def test_an_error_is_followed_by_the_next(net: Net) -> None:
    """ "Se não houver resposta do cliente (timeout ou outro), usa-se o cliente seguinte." """
    errors: list[BaseException] = []
    one, two = await net.connect("one", on_error=errors.append), await net.connect("two")
    client = await net.connect()
    calls = 0

    def failing(message: busway.Message) -> bytes:
        nonlocal calls
        calls += 1
        raise LookupError("not here")

    async with one.serve("s", failing, shared=True), two.serve("s", says("2"), shared=True):
        for _ in range(4):
            assert (await client.request("s")).text == "2"
    assert 1 <= calls == len(errors)
    async with one.serve("s", failing, shared=True):
        with pytest.raises(busway.ServiceError, match="not here"):
            await client.request("s")


async def test_a_death_is_followed_by_the_next(net: Net) -> None:
    one, two, client = await net.connect("one", drain=0), await net.connect("two"), await net.connect()
    taken = await one.serve("s", shared=True)
    asking = asyncio.ensure_future(client.request("s", timeout=None, each=PATIENCE))
    await taken.recv(timeout=PATIENCE)
    async with two.serve("s", says("2"), shared=True):
        await one.close()
        assert (await within(asking)).text == "2"


async def test_a_timeout_is_followed_by_the_next(net: Net) -> None:
    one, two, client = await net.connect("one"), await net.connect("two"), await net.connect()
    async with one.serve("s", shared=True) as silent:
        asking = asyncio.ensure_future(client.request("s", timeout=PATIENCE, each=1.0))
        late = await silent.recv(timeout=PATIENCE)
        async with two.serve("s", says("2"), shared=True):
            assert (await within(asking)).text == "2"
            await late.reply(b"1")  # a reply to a request that is over harms nobody
            await settle(one, client)
            assert client.state == one.state == "connected"


async def test_an_ask_that_never_answers_is_passed_over(net: Net) -> None:
    one, two, client = await net.connect("one", drain=0), await net.connect("two"), await net.connect()
    never = asyncio.Event()

    async def ask(message: busway.Message) -> bool:
        await never.wait()
        return True

    def refuse(message: busway.Message) -> bool:
        return False

    async with (
        one.serve("s", says("1"), shared=True, ask=ask),
        two.serve("s", says("2"), shared=True, ask=refuse),
    ):
        with pytest.raises(busway.NoResponders):
            await client.request("s", timeout=PATIENCE, each=0.03)


@pytest.mark.parametrize("later", [False, True], ids=["plain", "coroutine"])
async def test_an_ask_that_raises_is_unwilling_and_reported(net: Net, later: bool) -> None:
    errors: list[BaseException] = []
    one, two = await net.connect("one", on_error=errors.append), await net.connect("two")
    client = await net.connect()

    def broken(message: busway.Message) -> bool:
        raise LookupError("broken")

    async def broken_later(message: busway.Message) -> bool:
        raise LookupError("broken")

    async with one.serve("s", says("1"), shared=True, ask=broken_later if later else broken):
        with pytest.raises(busway.NoResponders):
            await client.request("s")
        async with two.serve("s", says("2"), shared=True, ask=lambda message: True):
            assert (await client.request("s")).text == "2"
    assert errors
    assert {type(error) for error in errors} == {LookupError}
    assert one.errors == len(errors)


async def test_ask_needs_shared(net: Net) -> None:
    bus = await net.connect()
    with pytest.raises(ValueError, match="shared=True"):
        bus.serve("s", says("1"), ask=lambda message: True)
    with pytest.raises(TypeError, match="ask must be a function"):
        bus.serve("s", says("1"), shared=True, ask=7)


async def test_a_service_that_is_closed_is_not_asked_any_more(net: Net) -> None:
    one, client = await net.connect("one"), await net.connect()
    gate, entered = asyncio.Event(), asyncio.Event()

    async def ask(message: busway.Message) -> bool:
        entered.set()
        await gate.wait()
        return True

    service = await one.serve("s", says("1"), shared=True, ask=ask)
    asking = asyncio.ensure_future(client.request("s", timeout=PATIENCE, each=PATIENCE))
    await within(entered.wait())
    await service.close()
    with pytest.raises(busway.NoResponders):
        await within(asking)
    assert not service._asks


async def test_an_ask_ends_with_its_client(net: Net) -> None:
    one, client = await net.connect("one", reconnect=None), await net.connect()
    entered, ended = asyncio.Event(), asyncio.Event()

    async def ask(message: busway.Message) -> bool:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return True

    await one.serve("s", says("1"), shared=True, ask=ask)
    asking = asyncio.ensure_future(client.request("s", timeout=PATIENCE, each=PATIENCE))
    await within(entered.wait())
    assert one._core.connection is not None
    one._core.connection.fail(busway.Disconnected("cut"))
    await within(ended.wait())
    with pytest.raises(busway.NoResponders):
        await within(asking)


async def test_asks_wait_for_nobody(net: Net) -> None:
    """One ask that takes its time holds up neither other asks nor requests."""
    server, client = await net.connect(), await net.connect()
    gates = {name: asyncio.Event() for name in "abc"}
    open_ = {"c"}

    async def ask(message: busway.Message) -> bool:
        if message.text not in open_:
            await gates[message.text].wait()
        return True

    async with server.serve("s", lambda message: message.payload, shared=True, ask=ask):
        waiting = {name: asyncio.ensure_future(client.request("s", name, timeout=None, each=PATIENCE)) for name in "ab"}
        assert (await within(client.request("s", "c"))).text == "c"
        for name in "ba":
            gates[name].set()
            assert (await within(waiting[name])).text == name


async def test_a_plain_request_gets_the_last_of_several_replies(net: Net) -> None:
    server, client = await net.connect(), await net.connect()

    async def three(message: busway.Message):
        for number in range(3):
            yield number

    async with server.serve("alone", three), server.serve("shared", three, shared=True):
        assert (await client.request("alone")).text == "2"
        assert (await client.request("shared")).text == "2"
    assert not client._core.pending._held


async def test_typed_shared_services_ask_with_values(net: Net) -> None:
    one, two, client = await net.connect(), await net.connect(), await net.connect()
    values: list[object] = []

    def mine(question: Question) -> bool:
        values.append(question)
        return question.text == "one"

    async def others(question: Question) -> bool:
        return question.text != "one"

    def answer(name: str) -> Callable[[Question], Answer | Awaitable[Answer]]:
        return lambda question: Answer(text=name)

    async with (
        one.serve(Question, "", answer("one"), shared=True, ask=mine),
        two.serve(Question, "", answer("two"), shared=True, ask=others),
    ):
        assert await client.request("", Question(text="one")) == Answer(text="one")
        assert await client.request("", Question(text="x")) == Answer(text="two")
    assert values[0] == Question(text="one")


async def test_requests_are_spread_over_the_willing(net: Net) -> None:
    buses = [await net.connect(f"bus {number}") for number in range(3)]
    client = await net.connect()
    counts = [0, 0, 0]
    gate = asyncio.Event()

    def handler(number: int) -> Callable[[busway.Message], Awaitable[bytes]]:
        async def handle(message: busway.Message) -> bytes:
            counts[number] += 1
            await gate.wait()
            return b""

        return handle

    services = [await bus.serve("s", handler(number), shared=True) for number, bus in enumerate(buses)]
    asking = [asyncio.ensure_future(client.request("s", timeout=PATIENCE, each=PATIENCE)) for _ in range(9)]
    await until(lambda: sum(counts) == 9)
    gate.set()
    await within(asyncio.gather(*asking))
    assert min(counts) > 0
    for service in services:
        await service.close()


@pytest.mark.parametrize(
    ("each", "error", "text"),
    [
        (0, ValueError, "each must be above zero"),
        (-1, ValueError, "each must be above zero"),
        ("1", ValueError, "each: '1' is not a length of time"),
        (float("inf"), ValueError, "each must be a finite"),
        (700, ValueError, "each must be at most 655.35"),
    ],
)
async def test_a_wrong_each_is_refused_by_name(net: Net, each: float, error: type[Exception], text: str) -> None:
    bus = await net.connect()
    with pytest.raises(error, match=text):
        await bus.request("s", each=each)
    with pytest.raises(error, match=text):
        await bus.request_all("s", each=each)
    with pytest.raises(error, match=text):
        bus.request_many("s", each=each)
