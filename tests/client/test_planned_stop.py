"""The planned stop of a broker costs its clients no more than a crash, and ends soon.

Durable publishes wait for the next connection, whether they were under way or begin meanwhile; what is stored or noted by
then is answered before the broker closes.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import busway
from busway.broker.channels.progress_log import ProgressLog
from busway.broker.streams.stores.database import DatabaseStore
from busway.positions import Position
from busway.testing import FaultProxy
from tests.support.channels import STREAM, stream
from tests.support.net import PATIENCE, Net, until, within

PROMPT = {"reconnect": (0, 0, 0.001), "timeout": PATIENCE}


async def move(net: Net, proxy: FaultProxy, **more: Any) -> None:
    """A broker in the place of the one before."""
    proxy.upstream = (await net.serve(**more)).addresses[0]


async def test_publishes_of_a_busy_client_are_delayed_only(net: Net, tmp_path: Path) -> None:
    server = await net.serve(data=tmp_path)
    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, **PROMPT) as bus:
        placed: list[Position] = []
        enough = asyncio.Event()

        async def work(name: int) -> None:
            while not enough.is_set():
                placed.append(await bus.publish(f"t/{name}", b"", durable=True))
                placed.extend(await bus.publish_many(f"t/{name}", [b""] * 10, durable=True))

        working = [asyncio.ensure_future(work(name)) for name in range(8)]
        await until(lambda: len(placed) > 100)
        await within(server.stop())
        before = len(placed)
        await move(net, proxy, data=tmp_path)
        await until(lambda: len(placed) > before + 200)
        enough.set()
        await within(asyncio.gather(*working))
        info = await (await bus.stream("default")).info()
        assert sorted(place.offset for place in placed) == list(range(info.next))


async def test_publishes_that_begin_while_the_broker_stops_wait_for_the_next(net: Net) -> None:
    server = await net.serve(drain=3600)
    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, **PROMPT) as bus:
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def slow(message: busway.Message) -> bytes:
            asked.set()
            await go_on.wait()
            return b"done"

        async with bus.serve("slow", slow):
            request = asyncio.ensure_future(bus.request("slow", timeout=PATIENCE))  # it keeps the broker from closing
            await within(asked.wait())
            stopping = asyncio.ensure_future(server.stop())
            await until(lambda: bus._core.broker_stopping)
            one = asyncio.ensure_future(bus.publish("t", b"one", durable=True))
            many = asyncio.ensure_future(bus.publish_many("t", [b"many"] * 3, durable=True))
            with pytest.raises(busway.Disconnected, match="the broker is stopping"):
                await bus.publish("t", b"nothing that can be sent again")
            go_on.set()
            assert (await within(request)).payload == b"done"
            await within(stopping)
            await until(lambda: bus.state == "lost")
            late = asyncio.ensure_future(bus.publish("t", b"late", durable=True))
            assert [one.done(), many.done()] == [False, False]
            await move(net, proxy)
            assert (await within(one)).sequence == 1
            assert [place.sequence for place in await within(many)] == [2, 3, 4]
            assert (await within(late)).sequence == 5


@pytest.mark.parametrize("reconnect", [None, (3600,)])
async def test_they_end_with_their_bus(net: Net, reconnect: Any) -> None:
    server = await net.serve()
    bus = await busway.connect(server.addresses[0], reconnect=reconnect, drain=0.05)
    events = bus.events()
    await within(server.stop())
    async for event in events:
        if event.kind in {"lost", "closed"}:
            break
    waiting = [asyncio.ensure_future(bus.publish("t", b"", durable=True)) for _ in range(3)]
    await asyncio.sleep(0)
    await within(bus.close())
    for outcome in await within(asyncio.gather(*waiting, return_exceptions=True)):
        assert isinstance(outcome, busway.Closed)


async def test_one_that_was_never_connected_waits_for_nothing(net: Net) -> None:
    bus = busway.connect((await net.serve()).addresses[0])
    with pytest.raises(busway.Disconnected, match="not connected yet"):
        await within(bus.publish("t", b"", durable=True))


async def test_a_consumer_with_endless_work_does_not_hold_the_stop_up(net: Net) -> None:
    """It may acknowledge what it has, and gets no more."""
    server = await net.serve(drain=3600)
    maker = await stream(net, 2000)
    bus = await net.connect(reconnect=None)
    done, late = 0, 0
    async with bus.channel(STREAM, "c", window=4, max_deliveries=0) as channel:

        async def work() -> None:
            nonlocal done, late
            async for message in channel:
                await message.nack() if done % 2 else await message.ack()
                done += 1
                late += bus._core.broker_stopping

        working = asyncio.ensure_future(work())
        await until(lambda: done > 20)
        await within(server.stop())
        with pytest.raises(busway.BusError):
            await within(working)
    assert late <= 8
    await maker.close()


async def test_what_is_about_to_be_noted_is_answered_first(
    net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await net.serve(data=tmp_path)
    await stream(net, 1, store="disk", safety="synced")  # so it is another thread that notes
    bus = await net.connect(reconnect=None)
    release, waiting, done_waiting = ProgressLog._release, list[ProgressLog](), False

    def slow(progress: ProgressLog) -> None:
        if done_waiting:
            release(progress)
        else:
            waiting.append(progress)

    def go_on() -> None:
        nonlocal done_waiting
        done_waiting = True
        for progress in waiting:
            release(progress)

    channel = await bus.channel(STREAM, "c")
    message = await channel.recv(timeout=PATIENCE)
    monkeypatch.setattr(ProgressLog, "_release", slow)
    done = channel.ack(message)
    await until(lambda: bool(waiting))
    stopping = asyncio.ensure_future(server.stop())
    await until(lambda: bus._core.broker_stopping)
    asyncio.get_running_loop().call_later(0.1, go_on)
    await within(done)
    await within(stopping)


async def test_what_is_about_to_be_stored_is_answered_first(
    net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await net.serve(data=tmp_path)
    await stream(net, 1, store="db")
    bus = await net.connect(reconnect=None)
    append, begun, go_on = DatabaseStore.append, asyncio.Event(), asyncio.Event()

    async def slow(store: DatabaseStore, records: Any) -> None:
        begun.set()
        await go_on.wait()
        await append(store, records)

    monkeypatch.setattr(DatabaseStore, "append", slow)
    publishing = asyncio.ensure_future(bus.publish("t/a", b"", durable=True))
    await within(begun.wait())
    stopping = asyncio.ensure_future(server.stop())
    await until(lambda: bus._core.broker_stopping)
    asyncio.get_running_loop().call_later(0.1, go_on.set)
    assert (await within(publishing)).offset == 1
    await within(stopping)
