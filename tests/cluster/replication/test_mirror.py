"""Mirrors over real sockets: a complete and current copy of another node's streams."""

import logging
import shutil

from busway._core import Log
from tests.support.mirrored import content, follows, mirroring, payloads, streams
from tests.support.net import eventually


async def test_a_mirror_has_the_same_records_of_all_streams(nodes):
    a = await nodes.node("a")
    bus = await nodes.client(a)
    await bus.create_stream("orders", ["orders/**"])
    await bus.create_stream("quick", ["quick/**"], store="memory")
    for number in range(300):
        await bus.publish("orders/1", f"before {number}".encode(), durable=True, fields={"n": number})
    b = await nodes.node("b", mirror_of="a")
    for number in range(300):
        await bus.publish("orders/2", f"after {number}".encode(), durable=True)
        await bus.publish("quick/1", f"quick {number}".encode(), durable=True)
    await bus.create_stream("late", ["late/**"])
    await bus.publish("late/1", b"late", durable=True)
    await follows(a, b)
    copies = mirroring(b).copies
    for name in ("orders", "quick", "late", "default"):
        assert content(copies[a.guid, name].log) == content(streams(a)[name].log), name
    assert len(payloads(copies[a.guid, "orders"].log)) == 600
    figures = mirroring(b).figures()["mirror_of"]
    assert figures["name"] == "a"
    assert figures["behind"] == 0
    assert figures["streams"]["orders"]["copied_bytes"] > 600 * 80
    assert mirroring(a).figures()["mirrors"][0]["streams"]["orders"]["behind"] == 0


async def test_what_is_copied_is_delivered_to_nobody(nodes):
    """Um evento de mirror não provoca broadcast."""
    a = await nodes.node("a")
    bus = await nodes.client(a)
    for _ in range(50):
        await bus.publish("t", b"x", durable=True)
    b = await nodes.node("b", mirror_of="a")
    there = await nodes.client(b)
    async with there.subscribe("t") as got:
        await follows(a, b)
        await there.publish("t", b"mine")
        assert (await got.recv(timeout=60)).payload == b"mine"


async def test_a_copy_goes_on_where_it_was(nodes, caplog):
    a, b = await nodes.pair()
    bus = await nodes.client(a)
    for number in range(100):
        await bus.publish("t", str(number).encode(), durable=True)
    await follows(a, b)
    await b.stop()
    for number in range(100, 200):
        await bus.publish("t", str(number).encode(), durable=True)
    caplog.clear()
    caplog.set_level(logging.INFO, "busway.cluster")
    b = await nodes.node("b", mirror_of=a.guid)
    assert len(payloads(mirroring(b).copies[a.guid, "default"].log)) == 100, "from the disk, before any link"
    await follows(a, b)
    assert not [one for one in caplog.messages if "from the start" in one]
    assert payloads(mirroring(b).copies[a.guid, "default"].log) == [str(number).encode() for number in range(200)]


async def test_a_copy_of_something_else_is_put_aside_and_made_anew(nodes, caplog, tmp_path):
    a, b = await nodes.pair()
    bus = await nodes.client(a)
    for number in range(100):
        await bus.publish("t", str(number).encode(), durable=True)
    await follows(a, b)
    await b.stop()
    place = tmp_path / "b" / "mirrors" / a.guid / "default"
    shutil.rmtree(place / "log")
    other = Log.open(place / "log")
    other.append([("t", b"other", None, "", 1, number + 1, 0, 0, 0) for number in range(20)], 1000)
    other.close()
    b = await nodes.node("b", mirror_of=a.addresses[0])
    await follows(a, b)
    assert content(mirroring(b).copies[a.guid, "default"].log) == content(streams(a)["default"].log)
    assert any("the old replica" in one for one in caplog.messages)
    aside = Log.view(place.with_name(".default.aside") / "log")
    assert aside.next == 20


async def test_channels_are_copied_with_where_they_stand(nodes):
    a = await nodes.node("a")
    bus = await nodes.client(a)
    await bus.create_stream("orders", ["orders/**"])
    for number in range(10):
        await bus.publish("orders/1", str(number).encode(), durable=True)
    async with bus.channel("orders", "early", start="first", lease=7.0) as early:
        await early.ack(await early.take(4, timeout=60))
    b = await nodes.node("b", mirror_of="a")
    await follows(a, b)
    async with bus.channel("orders", "late", start="first") as late:
        await late.ack(await late.take(6, timeout=60))

    async def copied():
        states = mirroring(b).copies[a.guid, "orders"].states()
        return {name: state.floor for name, state in states.items()} == {"early": 4, "late": 6}

    await eventually(copied)
    assert mirroring(b).copies[a.guid, "orders"].states()["early"].config.lease == 7.0
    await bus.remove_channel("orders", "early")

    async def gone():
        return set(mirroring(b).copies[a.guid, "orders"].states()) == {"late"}

    await eventually(gone)


async def test_streams_that_change_and_go(nodes, tmp_path):
    a, b = await nodes.pair()
    bus = await nodes.client(a)
    stream = await bus.create_stream("orders", ["orders/**"])
    await bus.publish("orders/1", b"x", durable=True)
    await follows(a, b)
    await bus.update_stream("orders", max_count=5000)

    async def changed():
        return mirroring(b).copies[a.guid, "orders"].config.max_count == 5000

    await eventually(changed)
    assert stream.name == "orders"
    await bus.remove_stream("orders")

    async def gone():
        return (a.guid, "orders") not in mirroring(b).copies

    await eventually(gone)
    assert not (tmp_path / "b" / "mirrors" / a.guid / "orders").exists()
    await bus.create_stream("orders", ["orders/**"])
    await bus.publish("orders/1", b"y", durable=True)
    await follows(a, b)
    assert payloads(mirroring(b).copies[a.guid, "orders"].log) == [b"y"]


async def test_two_nodes_mirror_each_other(nodes):
    a = await nodes.node("a", mirror_of="b")
    b = await nodes.node("b", mirror_of="a")
    for server in (a, b):
        bus = await nodes.client(server)
        for number in range(50):
            await bus.publish("t", f"{server.name} {number}".encode(), durable=True)
    await follows(a, b)
    await follows(b, a)
    for here, there in ((a, b), (b, a)):
        log = mirroring(there).copies[here.guid, "default"].log
        assert payloads(log) == [f"{here.name} {number}".encode() for number in range(50)]
