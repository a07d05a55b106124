"""Requests as the document of the Server BUS has them, phase 2: each test quotes the line marked x that it keeps.

Its scene: whoever asks for a device does not know at which of two poles it is installed; each pole serves its own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

import busway
from tests.support.net import PATIENCE, Net, gather, rest, settle, until, within

pytestmark = pytest.mark.both_loops


class Pole:
    """One of the providers: which devices it has, and what happened to it, in order."""

    def __init__(self, bus: busway.Bus, devices: str) -> None:
        self.bus, self.devices = bus, devices
        self.seen: list[str] = []
        self.willing = asyncio.Event()
        """Until it is set, nobody learns whether this pole is interested."""
        self.willing.set()

    async def ask(self, message: busway.Message) -> bool:
        self.seen.append(f"ask {message.text}")
        await self.willing.wait()
        return message.text in self.devices

    def handle(self, message: busway.Message) -> str:
        self.seen.append(f"request {message.text}")
        return self.bus.name

    def serve(self, topic: str = "dtc") -> busway.Service:
        return self.bus.serve(topic, self.handle, shared=True, ask=self.ask)


@pytest.fixture
async def poles(net: Net) -> tuple[Pole, Pole]:
    return Pole(await net.connect("north"), "ac"), Pole(await net.connect("south"), "bc")


def work(net: Net) -> int:
    """Requests on shared services that the broker still has to do with."""
    assert net.server is not None
    assert net.server._hub is not None
    return net.server._hub.services.asking.pending


# "single Reply"


async def test_the_providers_of_an_event_are_asked(net: Net, poles: tuple[Pole, Pole]) -> None:
    """ "Um evento chega ao broker. O broker pergunta aos providers especificos se estão interessados em responder -
    ASK:<EVENT_NAME>". Specific: those of this event, and no others."""
    north, south = poles
    other, client = Pole(await net.connect("other"), "abc"), await net.connect()
    async with north.serve(), south.serve(), other.serve("rtu"), client.subscribe("**") as plain:
        assert (await client.request("dtc", "b", timeout=PATIENCE)).text == "south"
        assert north.seen == ["ask b"]
        assert south.seen == ["ask b", "request b"]
        await settle(client, other.bus)
        assert other.seen == []
        assert plain.received == 0


@pytest.mark.parametrize(("device", "owner"), [("a", "north"), ("b", "south")])
async def test_they_say_true_or_false(net: Net, poles: tuple[Pole, Pole], device: str, owner: str) -> None:
    """ "Os providers respondem "true" se estão interessados ou "false" se não"."""
    north, south = poles
    client = await net.connect()
    async with north.serve(), south.serve():
        reply = await client.request("dtc", device, timeout=PATIENCE)
        assert (reply.text, reply.kind, reply.topic) == (owner, "reply", "dtc")


async def test_false_is_dropped(net: Net, poles: tuple[Pole, Pole]) -> None:
    """ "Às respostas "false" não é dado seguimento": the request never reaches who said so, even if nobody else has it."""
    north, south = poles
    client = await net.connect()
    async with north.serve(), south.serve():
        for _ in range(5):
            with pytest.raises(busway.NoResponders):
                await client.request("dtc", "?", timeout=None)
            with pytest.raises(busway.NoResponders):
                await client.request_all("dtc", "?", timeout=None)
            assert (await client.request("dtc", "a", timeout=PATIENCE)).text == "north"
        await settle(client, north.bus, south.bus)
    assert set(north.seen) == {"ask ?", "ask a", "request a"}
    assert set(south.seen) == {"ask ?", "ask a"}
    assert work(net) == 0


async def test_the_first_to_say_true_processes_it(net: Net, poles: tuple[Pole, Pole]) -> None:
    """ "O primeiro cliente a responder "true", será o que irá processar o request, sendo-lhe enviado o REQUEST." Whoever
    was asked first: who answers first counts."""
    client = await net.connect()
    async with poles[0].serve(), poles[1].serve():
        for first, slow in (poles, reversed(poles)):
            slow.willing.clear()
            assert (await client.request("dtc", "c", timeout=PATIENCE, each=PATIENCE)).text == first.bus.name
            assert "request c" not in slow.seen
            slow.willing.set()
            await settle(slow.bus, client)
            first.seen.clear()
            slow.seen.clear()


@pytest.mark.parametrize("how", ["error", "death", "timeout"])
async def test_without_an_answer_the_next_one_is_used(net: Net, how: str) -> None:
    """ "Se não houver resposta do cliente (timeout ou outro), usa-se o cliente seguinte." Both said "true" before."""
    buses = [await net.connect(name, drain=0) for name in ("north", "south")]
    client = await net.connect()
    services = [await bus.serve("dtc", shared=True, ask=lambda _: True) for bus in buses]
    each = 0.5 if how == "timeout" else PATIENCE
    asking = asyncio.ensure_future(client.request("dtc", b"c", timeout=None, each=each))
    taking = {asyncio.ensure_future(service.recv(timeout=PATIENCE)): place for place, service in enumerate(services)}
    done, _ = await asyncio.wait(taking, return_when=asyncio.FIRST_COMPLETED)
    (first,) = done  # one at a time: the other has nothing yet
    await settle(*buses, client)
    (second,) = set(taking) - done
    assert not second.done()
    failing = taking[first]
    if how == "error":
        await first.result().fail("broken")
    elif how == "death":
        assert buses[failing]._core.connection is not None
        buses[failing]._core.connection.fail(busway.Disconnected("cut"))
    again = await within(second)
    assert again.payload == b"c"
    await again.reply(buses[taking[second]].name)
    reply = await within(asking)
    assert reply.text == buses[1 - failing].name
    assert work(net) == 0


async def test_when_all_fail_the_last_error_is_told(net: Net) -> None:
    """ "usa-se o cliente seguinte", and each one once."""
    names = ("one", "two", "three")
    buses = [await net.connect(name, on_error=lambda _: None) for name in names]
    client = await net.connect()
    tried: list[str] = []

    def failing(name: str) -> Callable[[busway.Message], str]:
        def handle(message: busway.Message) -> str:
            tried.append(name)
            raise busway.HandlerError(f"{name} is broken")

        return handle

    for bus in buses:
        await bus.serve("dtc", failing(bus.name), shared=True)
    with pytest.raises(busway.HandlerError) as caught:
        await client.request("dtc", timeout=PATIENCE)
    assert sorted(tried) == sorted(names)
    assert str(caught.value) == f"{tried[-1]} is broken"


async def test_a_later_true_is_ignored(net: Net, poles: tuple[Pole, Pole]) -> None:
    """ "Após uma resposta com sucesso, as respostas "true" dos restantes clientes serão ignoradas." """
    north, south = poles
    client = await net.connect()
    south.willing.clear()
    async with north.serve(), south.serve():
        assert (await client.request("dtc", "c", timeout=PATIENCE, each=PATIENCE)).text == "north"
        await until(lambda: south.seen, south.bus.flush)
        south.willing.set()
        await settle(south.bus, client, north.bus)
        assert (north.seen, south.seen) == (["ask c", "request c"], ["ask c"])
        assert work(net) == 0
        # Nor does it count against who was slow: it gets the next one.
        assert (await client.request("dtc", "b", timeout=PATIENCE)).text == "south"


# "multiple Reply"


async def test_the_same_steps_until_the_false_ones_are_dropped(net: Net, poles: tuple[Pole, Pole]) -> None:
    """ "Os mesmos passos do single Reply até ao ponto 4, inlusivé." """
    north, south = poles
    client = await net.connect()
    async with north.serve(), south.serve():
        for device, owners in (("a", {"north"}), ("b", {"south"}), ("c", {"north", "south"})):
            replies = await client.request_all("dtc", device, timeout=PATIENCE)
            assert {reply.sender for reply in replies} == owners
            assert replies.failed == []
    assert north.seen == ["ask a", "request a", "ask b", "ask c", "request c"]
    assert south.seen == ["ask a", "ask b", "request b", "ask c", "request c"]


async def test_intermediate_replies_are_marked(net: Net) -> None:
    """ "as repostas intermedias são identificadas como tal e a ultima resposta é uma resposta normal (identifica o fim)." """
    buses = [await net.connect(name) for name in ("one", "two", "three")]
    client = await net.connect()

    async def two(message: busway.Message) -> AsyncIterator[str]:
        yield "1"
        yield "2"

    async with buses[0].serve("dtc", two, shared=True), buses[1].serve("dtc", two, shared=True):
        got = [(reply.text, reply.last) async for reply in client.request_many("dtc", timeout=PATIENCE)]
        assert sorted(text for text, _ in got) == ["1", "1", "2", "2"]
        assert [last for _, last in got] == [False, False, False, True]
        single = await client.request("dtc", timeout=PATIENCE)
        assert (single.text, single.last) == ("2", True)


async def test_the_requester_gathers_them_until_the_last(net: Net) -> None:
    """ "O requerente acumula as várias respostas numa array, até receber a ultima resposta." """
    buses = [await net.connect(name) for name in ("one", "two", "three")]
    client = await net.connect()
    services = [await bus.serve("dtc", shared=True) for bus in buses]
    asking = asyncio.ensure_future(client.request_all("dtc", timeout=None, each=PATIENCE))
    for service, bus in zip(services, buses, strict=True):
        request = await service.recv(timeout=PATIENCE)
        await settle(*buses, client)
        assert not asking.done()
        await request.reply(bus.name)
    assert [(reply.text, reply.last) for reply in await within(asking)] == [
        ("one", False),
        ("two", False),
        ("three", True),
    ]


async def test_the_array_is_handed_over_and_nothing_comes_after(net: Net) -> None:
    """ "Entrega a array à callback. O requerente remove a callback". A reply after the end finds nobody."""
    one, two, client = await net.connect("one"), await net.connect("two"), await net.connect()
    async with one.serve("dtc", lambda _: "1", shared=True), two.serve("dtc", shared=True) as late:
        gathering = client.request_many("dtc", timeout=1.0, each=PATIENCE)
        replies = await gathering.all()
        assert [reply.text for reply in replies] == ["1"]
        assert [failed.sender for failed in replies.failed] == ["two"]
        assert not client._core.gathering
        await (await late.recv(timeout=PATIENCE)).reply("2")
        await settle(two, client)
        assert [reply async for reply in gathering] == []
        assert (client.state, client.errors, two.errors) == ("connected", 0, 0)
        assert work(net) == 0


# "Broker Listeners"


async def test_listeners(net: Net, poles: tuple[Pole, Pole]) -> None:
    """ "Subscribers especiais que escutam multiplos eventos baseados em wildcards (talvez regular expressions)." One copy of
    each, however many were asked or answered."""
    north, south = poles
    ear, client = await net.connect(), await net.connect("client")
    async with (
        ear.subscribe("/scada/digital/*", listen=True) as wildcard,
        ear.subscribe("re:scada/digital/.+", listen=True) as expression,
        north.serve("scada/digital/d1"),
        south.serve("scada/digital/d1"),
        client.subscribe("scada/digital/abc"),
    ):
        await client.publish("scada/digital/abc", b"1")
        await client.push("scada/digital/abc", b"2")
        await client.request("scada/digital/d1", b"c", timeout=PATIENCE)
        await client.request_all("scada/digital/d1", b"c", timeout=PATIENCE)
        await client.publish("scada/analog/a1", b"no")
        await settle(client, ear)
        for subscription in (wildcard, expression):
            assert [(one.kind, one.topic, one.payload, one.sender) for one in await rest(subscription)] == [
                ("publish", "scada/digital/abc", b"1", "client"),
                ("push", "scada/digital/abc", b"2", "client"),
                ("request", "scada/digital/d1", b"c", "client"),
                ("request", "scada/digital/d1", b"c", "client"),
            ]


async def test_listeners_never_count_as_providers(net: Net, poles: tuple[Pole, Pole]) -> None:
    """A listener is a subscriber, "especial": it is not asked, gets no work, and its presence answers nobody."""
    north, south = poles
    ear, client = await net.connect("ear"), await net.connect()
    async with ear.subscribe("**", listen=True) as listening:
        for ask in (client.request, client.request_all):
            with pytest.raises(busway.NoResponders):
                await ask("dtc", b"c", timeout=None)
        with pytest.raises(busway.NoConsumers):
            await client.push("dtc", b"c", timeout=None)
        async with north.serve(), south.serve(), client.subscribe("dtc") as consumer:
            replies = await client.request_all("dtc", "c", timeout=PATIENCE)
            assert sorted(reply.sender for reply in replies) == ["north", "south"]
            for _ in range(10):
                await client.push("dtc", b"job")
            assert len(await gather(consumer, 10)) == 10
        await settle(client, ear)
        assert {message.kind for message in await rest(listening)} == {"request", "push"}
