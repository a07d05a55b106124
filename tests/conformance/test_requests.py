"""Requests and services: one service per topic, and every request has exactly one end."""

import asyncio

import pytest

import busway
from tests.support.net import PATIENCE, Net, payloads, settle, until, within

pytestmark = pytest.mark.both_loops


def double(message: busway.Message) -> bytes:
    return message.payload * 2


async def test_a_request_is_answered(net: Net) -> None:
    server, client = await net.connect("server"), await net.connect("client")
    seen: list[busway.Message] = []

    async def handler(message: busway.Message) -> bytes:
        seen.append(message)
        return b"hello " + message.payload

    async with server.serve("hello", handler):
        reply = await client.request("hello", b"alice")
    async with server.serve("/slash", handler):
        assert (await client.request("slash", b"bob")).payload == b"hello bob"
    assert (reply.payload, reply.kind, reply.topic) == (b"hello alice", "reply", "hello")
    assert [(each.topic, each.sender, each.kind) for each in seen[:1]] == [("hello", "client", "request")]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"x", b"x"),
        ("ü", "ü".encode()),
        (None, b""),
        ({"sum": 3}, b'{"sum":3}'),
        (0, b"0"),
        (b"\0" * 200_000, b"\0" * 200_000),
    ],
    ids=["bytes", "str", "none", "object", "int", "large"],
)
async def test_what_a_handler_may_return(net: Net, answer: object, expected: bytes) -> None:
    bus = await net.connect()
    async with bus.serve("t", lambda message: answer):
        assert (await bus.request("t")).payload == expected


async def test_a_service_without_handler_is_iterated(net: Net) -> None:
    server, client = await net.connect(), await net.connect()
    async with server.serve("t") as service:
        asking = asyncio.ensure_future(client.request("t", b"1"))
        request = await service.recv(timeout=PATIENCE)
        assert (request.payload, request.topic) == (b"1", "t")
        await request.reply(b"one")
        assert (await asking).payload == b"one"
        asking = asyncio.ensure_future(client.request("t", b"2"))
        async for request in service:
            await request.fail("no twos")
            break
        with pytest.raises(busway.HandlerError, match="no twos"):
            await asking


async def test_a_second_service_is_refused_and_the_first_goes_on(net: Net) -> None:
    first, second = await net.connect(), await net.connect()
    async with first.serve("t", double):
        for bus in (second, first):
            with pytest.raises(busway.ServiceTaken) as caught:
                async with bus.serve("t", lambda message: b"other"):
                    pass
            assert caught.value.code == 41
        assert (await second.request("t", b"ab")).payload == b"abab"
    async with second.serve("t", lambda message: b"now mine"):
        assert (await first.request("t", b"ab")).payload == b"now mine"


async def test_nobody_there_is_told_at_once(net: Net) -> None:
    bus = await net.connect()
    with pytest.raises(busway.NoResponders) as caught:
        await bus.request("nobody", timeout=None)  # no limit of time: it must not need one
    assert caught.value.code == 40
    async with bus.subscribe("nobody"):  # a subscriber is no service
        with pytest.raises(busway.NoResponders):
            await bus.request("nobody", timeout=None)


async def test_a_service_that_ends_mid_request_fails_the_request_at_once(net: Net) -> None:
    server, client = await net.connect(drain=0), await net.connect()
    service = await server.serve("t")
    async with asyncio.TaskGroup() as tasks:

        async def ask() -> None:
            with pytest.raises(busway.ServiceGone) as caught:
                await client.request("t", b"", timeout=None)
            assert caught.value.code == 42

        for _ in range(3):
            tasks.create_task(ask())
        for _ in range(3):
            await service.recv(timeout=PATIENCE)
        await server.close()
    with pytest.raises(busway.NoResponders):
        await client.request("t", b"", timeout=None)


async def test_what_was_taken_before_the_service_ended_can_still_be_answered(net: Net) -> None:
    server, client = await net.connect(), await net.connect()
    service = await server.serve("t")
    asking = asyncio.ensure_future(client.request("t", timeout=PATIENCE))
    request = await service.recv(timeout=PATIENCE)
    await service.close()
    with pytest.raises(busway.NoResponders):
        await client.request("t")
    await request.reply(b"yes")
    assert (await asking).payload == b"yes"


async def test_requests_that_nobody_took_fail_when_the_service_ends(net: Net) -> None:
    server, client = await net.connect(), await net.connect()
    service = await server.serve("t")
    asking = asyncio.ensure_future(client.request("t", timeout=None))
    await settle(client, server)
    await service.close()
    with pytest.raises(busway.ServiceError):
        await within(asking)


async def test_an_error_of_the_handler_reaches_the_requester_with_its_text(net: Net) -> None:
    errors: list[BaseException] = []
    server, client = await net.connect(on_error=errors.append), await net.connect()

    async def handler(message: busway.Message) -> bytes:
        raise LookupError("no such price: €")

    async with server.serve("price", handler):
        with pytest.raises(busway.HandlerError, match="no such price: €") as caught:
            await client.request("price")
        assert caught.value.code == "LookupError"
        with pytest.raises(busway.HandlerError):  # and the service lives on
            await client.request("price")
    assert [type(error) for error in errors] == [LookupError, LookupError]


async def test_an_answer_that_cannot_be_encoded_is_an_error_not_a_silence(net: Net) -> None:
    server, client = await net.connect(on_error=lambda error: None), await net.connect()
    async with server.serve("t", lambda message: object()):
        with pytest.raises(busway.HandlerError):
            await client.request("t", timeout=None)


async def test_services_and_publishes_on_one_topic_do_not_disturb_each_other(net: Net) -> None:
    server, client = await net.connect(), await net.connect()
    async with server.serve("t", double), client.subscribe("t") as subscription:
        await client.publish("t", b"published")
        assert (await client.request("t", b"asked")).payload == b"askedasked"
        assert await payloads(subscription, 1) == [b"published"]
        await settle(server, client)
        assert subscription.pending == 0
        assert await client.publish("t", b"", confirm=True) == 1  # the service is no receiver


@pytest.mark.parametrize("topic", ["a/*", "**", "*"])
async def test_no_wildcards(net: Net, topic: str) -> None:
    bus = await net.connect()
    with pytest.raises(busway.InvalidTopic) as caught:
        await bus.request(topic)
    assert caught.value.code == 23
    with pytest.raises(busway.InvalidTopic) as caught:
        async with bus.serve(topic, double):
            pass
    assert caught.value.code == 23


async def test_many_requests_of_two_clients_in_flight_are_not_mixed_up(net: Net) -> None:
    server, first, second = await net.connect(), await net.connect(), await net.connect()
    waiting: list[tuple[bytes, asyncio.Future[bytes]]] = []

    async def handler(message: busway.Message) -> bytes:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        waiting.append((message.payload, future))
        return await future

    async def ask(bus: busway.Bus, text: str) -> None:
        assert (await bus.request("t", text, timeout=PATIENCE)).text == f"re {text}"

    async with server.serve("t", handler, concurrency=1000), asyncio.TaskGroup() as tasks:
        for number in range(200):
            tasks.create_task(ask(first, f"first {number}"))
            tasks.create_task(ask(second, f"second {number}"))
        await until(lambda: len(waiting) == 400)
        for payload, future in reversed(waiting):  # the last one first
            future.set_result(b"re " + payload)


async def test_concurrency_of_a_service_is_bounded(net: Net) -> None:
    server, client = await net.connect(), await net.connect()
    running, most = 0, 0
    gate = asyncio.Semaphore(0)

    async def handler(message: busway.Message) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.acquire()
        running -= 1
        return b""

    async with server.serve("t", handler, concurrency=2), asyncio.TaskGroup() as tasks:
        for _ in range(6):
            tasks.create_task(client.request("t", timeout=PATIENCE))
        await until(lambda: running == 2)
        await settle(client, server)
        assert running == 2
        for _ in range(6):
            gate.release()
    assert most == 2


async def test_a_client_may_ask_itself(net: Net) -> None:
    bus = await net.connect()

    async def outer(message: busway.Message) -> bytes:
        return (await bus.request("inner", message.payload)).payload + b"!"

    async with bus.serve("inner", double), bus.serve("outer", outer):
        assert (await bus.request("outer", b"x")).payload == b"xx!"


async def test_the_empty_topic_can_be_served(net: Net) -> None:
    bus = await net.connect()
    async with bus.serve("", double):
        assert (await bus.request("", b"x")).payload == b"xx"
        assert (await bus.request("/", b"x")).payload == b"xx"


async def test_the_server_lives_on_long_after_answered_and_dropped_requests(net: Net) -> None:
    """A forerunner's server stopped when the timer of an answered request ran out; ours must not mind."""
    await net.serve(heartbeat=0.05)
    server, client = await net.connect(), await net.connect()
    async with server.serve("t") as service:
        with pytest.raises(busway.Timeout):
            await client.request("t", b"dropped", timeout=0.02)
        await service.recv(timeout=PATIENCE)
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(client.request("t", b"answered", timeout=1.0))
            await (await service.recv(timeout=PATIENCE)).reply(b"yes")
            assert (await asking).payload == b"yes"
        # Well past the time limits of both requests (and a few heartbeats) it still serves.
        with pytest.raises(busway.Timeout):
            await service.recv(timeout=1.2)
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(client.request("t", b"again"))
            await (await service.recv(timeout=PATIENCE)).reply(b"alive")
            assert (await asking).payload == b"alive"
    assert (await within(client.info()))["guid"] == client.server["guid"]
