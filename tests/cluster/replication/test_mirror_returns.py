"""A node with a mirror that comes back, and nodes that are killed, as servers and as processes: nothing that was acknowledged is lost."""

import asyncio
import shutil
import signal
from itertools import count

import busway
from busway._core import Log, block_records
from tests.support.cluster import FAST
from tests.support.mirror_processes import is_mirrored, make_mirrored
from tests.support.mirrored import content, follows, mirroring, payloads, streams
from tests.support.net import eventually


async def test_what_is_sent_again_is_not_acknowledged_before_the_mirror_has_it(nodes):
    a, b = await nodes.pair()
    bus = await nodes.client(a, reconnect=FAST)
    await bus.create_stream("orders", ["orders/**"], safety="mirrored")
    await bus.publish("orders/1", b"0", durable=True)
    await follows(a, b)
    await b.stop()
    waiting = asyncio.create_task(bus.publish("orders/1", b"1", durable=True))

    async def written():
        return streams(a)["orders"].log.written == 2

    await eventually(written)
    await a.stop(0.0)
    a = await nodes.node("a")
    assert streams(a)["orders"].log.written == 2
    other = await nodes.client(a)
    connected = bus._core

    async def back():
        return connected.open and a.stats()["clients"] >= 2

    await eventually(back)
    assert (await (await other.stream("orders")).info()).mirrored is True
    assert not waiting.done()
    b = await nodes.node("b", mirror_of="a")
    await asyncio.wait_for(waiting, 60)
    assert payloads(mirroring(b).copies[a.guid, "orders"].log) == [b"0", b"1"]
    assert payloads(streams(a)["orders"].log) == [b"0", b"1"]


async def test_a_node_that_lost_its_end_gets_it_back_before_it_takes_anything(nodes, tmp_path):
    a, b = await nodes.pair()
    bus = await nodes.client(a)
    for number in range(50):
        await bus.publish("t", str(number).encode(), durable=True)
    await follows(a, b)
    shutil.copytree(tmp_path / "a" / "streams" / "default" / "log", tmp_path / "old")
    for number in range(50, 80):
        await bus.publish("t", str(number).encode(), durable=True)
    await follows(a, b)
    await bus.close()
    await b.stop()
    await a.stop()
    shutil.rmtree(tmp_path / "a" / "streams" / "default" / "log")
    shutil.copytree(tmp_path / "old", tmp_path / "a" / "streams" / "default" / "log")
    a = await nodes.node("a")
    assert streams(a)["default"].log.next == 50
    bus = await nodes.client(a)
    waiting = asyncio.create_task(bus.publish("t", b"new", durable=True))
    b = await nodes.node("b", mirror_of="a")
    await asyncio.wait_for(waiting, 60)
    assert payloads(streams(a)["default"].log) == [str(number).encode() for number in range(80)] + [b"new"]
    await follows(a, b)
    assert content(mirroring(b).copies[a.guid, "default"].log) == content(streams(a)["default"].log)


async def test_a_node_whose_mirror_does_not_come_goes_on(nodes, caplog):
    a, b = await nodes.pair()
    bus = await nodes.client(a)
    await bus.publish("t", b"0", durable=True)
    await follows(a, b)
    await bus.close()
    await b.stop()
    await a.stop()
    a = await nodes.node("a", wait=0.2)
    bus = await nodes.client(a)
    await bus.publish("t", b"1", durable=True)  # after a while
    assert any("no mirror connected" in one for one in caplog.messages)
    await bus.close()
    await a.stop()
    caplog.clear()
    a = await nodes.node("a", wait=60.0)
    bus = await nodes.client(a)
    await bus.publish("t", b"2", durable=True)  # and nobody is waited for again
    assert payloads(streams(a)["default"].log) == [b"0", b"1", b"2"]


# Processes that are killed.


async def test_what_was_acknowledged_survives_the_node_and_its_disk(processes):
    a = await processes("a", "--mirror-wait", "60s")
    b = await processes("b", "--servers", a.address, "--mirror-of", "a")
    acknowledged = {}
    enough = asyncio.Event()
    async with busway.connect(a.address, reconnect=None) as bus:
        await make_mirrored(bus)
        await is_mirrored(bus, "orders")

        async def publish(task):
            for number in count():
                payload = f"{task} {number}".encode()
                place = await bus.publish(f"orders/{task}", payload, durable=True)
                acknowledged[place.offset] = payload
                if len(acknowledged) > 2000:
                    enough.set()

        tasks = [asyncio.create_task(publish(task)) for task in range(20)]
        await asyncio.wait_for(enough.wait(), 60)
        await a.end(signal.SIGKILL)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, busway.BusError)
    shutil.rmtree(a.data)
    await b.end()
    copy = Log.view(b.data / "mirrors" / a.guid / "orders" / "log")
    found = {row[0]: row[4] for row in block_records(content(copy))}
    assert len(acknowledged) > 2000
    assert {offset: found.get(offset) for offset in acknowledged} == acknowledged


async def test_a_node_and_its_mirror_that_are_killed_agree_again(processes):
    a = await processes("a", "--mirror-wait", "20s")
    b = await processes("b", "--servers", a.address, "--mirror-of", "a")
    a._arguments += ["--servers", b.address]
    acknowledged = {}
    stop = asyncio.Event()
    async with busway.connect(a.address, reconnect=FAST, offline=busway.Buffer(), learn=False) as bus:
        await make_mirrored(bus)

        async def publish(task):
            for number in count():
                if stop.is_set():
                    return
                payload = f"{task} {number}".encode()
                place = await bus.publish(f"orders/{task}", payload, durable=True)
                acknowledged[place.offset] = payload

        tasks = [asyncio.create_task(publish(task)) for task in range(4)]
        for victim in (a, b, a):
            before = len(acknowledged)

            async def more(before=before):
                return len(acknowledged) > before + 200

            await eventually(more)
            await victim.end(signal.SIGKILL)
            await victim.start()
        await is_mirrored(bus, "orders")
        stop.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
    await a.end()
    await b.end()
    here = Log.view(a.data / "streams" / "orders" / "log")
    copy = Log.view(b.data / "mirrors" / a.guid / "orders" / "log")
    assert content(here) == content(copy)
    found = {row[0]: row[4] for row in block_records(content(here))}
    assert {offset: found.get(offset) for offset in acknowledged} == acknowledged
