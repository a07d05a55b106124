"""When a client writes: of many requests or replies some before the last is made, one alone at once, nothing is left lying or overtaken."""

import asyncio

import pytest

import busway
from busway.client.connection import connection as driver
from busway.errors import BusError

URL = "tcp://127.0.0.1:0"


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each write in the midst of a turn."""
    sizes: list[int] = []
    write = driver.write_now

    def counted(transport: asyncio.Transport, data: memoryview) -> None:
        sizes.append(len(data))
        write(transport, data)

    monkeypatch.setattr(driver, "write_now", counted)
    return sizes


@pytest.mark.both_loops
async def test_many_requests_of_one_turn_are_written_in_portions_and_all_are_answered(early: list[int]) -> None:
    async with busway.serve(URL) as server, busway.connect(server.addresses[0]) as bus:
        url = server.addresses[0]
        async with busway.connect(url) as other, other.serve("double", lambda message: message.payload * 2):
            replies = await asyncio.gather(*(bus.request("double", f"{n}.", timeout=60) for n in range(100)))
        assert [reply.text for reply in replies] == [f"{n}.{n}." for n in range(100)]
    assert len(early) >= 8  # four times 24 requests, and as many replies


@pytest.mark.both_loops
async def test_one_request_after_the_other_is_written_at_once_without_portions(early: list[int]) -> None:
    async with busway.serve(URL) as server, busway.connect(server.addresses[0]) as bus:

        async def echo(message: busway.Message) -> bytes:
            return message.payload

        async with bus.serve("echo", echo):
            for n in range(60):
                assert (await bus.request("echo", str(n), timeout=60)).text == str(n)
    assert early == []


@pytest.mark.both_loops
async def test_a_request_that_can_not_be_sent_holds_nothing_back() -> None:
    silent = busway.Settings(heartbeat=1000.0)  # which would take along what lies there
    async with busway.serve(URL, settings=silent) as server, busway.connect(server.addresses[0]) as bus:
        news = await bus.subscribe("news")
        with pytest.raises(BusError):
            await bus.request("a//b", b"", timeout=60)
        await bus.publish("news", "comes")
        assert (await news.recv(timeout=60)).text == "comes"


@pytest.mark.both_loops
async def test_a_reply_that_can_not_be_sent_holds_nothing_back() -> None:
    async with busway.serve(URL) as server, busway.connect(server.addresses[0]) as bus, bus.subscribe("news") as news:
        most = server.settings.frame

        async def large(_: busway.Message) -> bytes:
            return bytes(most + 1)

        async with bus.serve("large", large):
            with pytest.raises(busway.HandlerError):
                await bus.request("large", timeout=60)
            await bus.publish("news", "comes")
            assert (await news.recv(timeout=60)).text == "comes"


@pytest.mark.both_loops
async def test_large_requests_of_one_turn_arrive_whole_though_the_socket_is_full(early: list[int]) -> None:
    async with busway.serve(URL) as server, busway.connect(server.addresses[0]) as bus:
        async with bus.serve("length", lambda message: str(len(message.payload))):
            async with busway.connect(server.addresses[0]) as other:
                sizes = range(400_000, 400_060)
                replies = await asyncio.gather(*(other.request("length", bytes(n), timeout=60) for n in sizes))
        assert [int(reply.text) for reply in replies] == list(sizes)
    assert max(early) > 400_000


async def test_what_is_stored_in_one_turn_is_not_held_up_by_a_transport_that_only_holds_it(early: list[int]) -> None:
    async with busway.serve() as server, server.connect() as bus:
        connection = bus._core.connection
        assert connection is not None
        placing = [bus.publish("t", str(n), durable=True) for n in range(100)]
        assert not connection.paused
        assert [(await one).sequence for one in placing] == list(range(1, 101))
    assert early == []


@pytest.mark.both_loops
@pytest.mark.parametrize("url", [(), (URL,)], ids=["memory", "tcp"])
async def test_nobody_overtakes_those_who_wait_for_room(url: tuple[str, ...]) -> None:
    async with busway.serve(*url) as server, busway.connect(server.addresses[0]) if url else server.connect() as bus:
        connection = bus._core.connection
        assert connection is not None
        connection.pause_writing()
        waiting = [asyncio.ensure_future(bus.publish("t", f"{n}", durable=True)) for n in range(3)]
        many = asyncio.ensure_future(bus.publish_many("t", ["3", "4"], durable=True))
        await asyncio.sleep(0)  # they look, and wait
        connection.resume_writing()
        late = [asyncio.ensure_future(bus.publish("t", f"{n}", durable=True)) for n in range(5, 8)]
        assert [(await one).sequence for one in waiting] == [1, 2, 3]
        assert [place.sequence for place in await many] == [4, 5]
        assert [(await one).sequence for one in late] == [6, 7, 8]
