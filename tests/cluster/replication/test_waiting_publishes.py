"""Publishes in streams with safety=mirrored over real sockets: they wait for the mirror, and end without one."""

import asyncio

import pytest

import busway
from busway._core import Log, SimulatedFiles
from busway.cluster.replication import copies as copies_
from tests.support.mirrored import follows, mirroring, payloads, streams
from tests.support.net import eventually


async def test_mirrored_needs_a_mirror(nodes):
    a = await nodes.node("a")
    bus = await nodes.client(a)
    with pytest.raises(busway.Rejected, match="--mirror-of"):
        await bus.create_stream("orders", ["orders/**"], safety="mirrored")
    with pytest.raises(ValueError, match="needs store 'disk'"):
        await bus.create_stream("orders", ["orders/**"], safety="mirrored", store="memory")
    b = await nodes.node("b", mirror_of="a")
    await follows(a, b)
    made = await bus.create_stream("orders", ["orders/**"], safety="mirrored")

    async def mirrored():
        return (await made.info()).mirrored is True

    await eventually(mirrored)
    there = await nodes.client(b)

    async def named():
        with pytest.raises(busway.Rejected, match="--mirror-of") as refused:
            await there.create_stream("more", ["more/**"], safety="mirrored")
        return "or ask a, which has a mirror" in str(refused.value)

    await eventually(named)
    with pytest.raises(ValueError, match="this broker itself"):
        busway.serve(name="a", data=nodes.folder / "c", cluster=busway.Cluster(mirror_of="a"))
    with pytest.raises(ValueError, match="folder for its replicas"):
        busway.serve(cluster=busway.Cluster(mirror_of="a"))


async def test_nodes_without_a_mirror_have_the_stream_without(nodes):
    a, b = await nodes.pair()
    c = await nodes.node("c", data=False)
    await nodes.whole(a, b, c)
    bus = await nodes.client(a)
    await bus.create_stream("orders", ["orders/**"], safety="mirrored")
    assert (streams(b)["orders"].config.safety, streams(b)["orders"].mirrored) == ("mirrored", False)
    assert (streams(c)["orders"].config.safety, streams(c)["orders"].mirrored) == ("written", None)
    await bus.update_stream("orders", max_count=5000)
    for server in (a, b, c):
        client = await nodes.client(server)
        place = await client.publish("orders/1", server.name.encode(), durable=True)
        assert (place.broker, place.stream) == (server.guid, "orders")
    assert streams(c)["orders"].config.max_count == 5000
    await follows(a, b)
    assert payloads(mirroring(b).copies[a.guid, "orders"].log) == [b"a"]


async def test_an_acknowledgement_waits_for_the_mirror(nodes):
    a, b = await nodes.pair()
    bus = await nodes.client(a)
    made = await bus.create_stream("orders", ["orders/**"], safety="mirrored")

    async def mirrored():
        return (await made.info()).mirrored is True

    await eventually(mirrored)
    for number in range(100):
        await bus.publish("orders/1", str(number).encode(), durable=True)
        assert mirroring(b).copies[a.guid, "orders"].log.written >= number + 1
    # A mirror that is silent: nothing is acknowledged, and nobody is given it.
    async with bus.subscribe("orders/*") as got:
        copying = mirroring(b).replica
        copying._report_written, told = lambda name: None, copying._report_written
        waiting = asyncio.create_task(bus.publish("orders/1", b"last", durable=True))

        async def there():
            return mirroring(b).copies[a.guid, "orders"].log.written == 101

        await eventually(there)
        await made.info()
        assert not waiting.done()
        assert streams(a)["orders"].log.safe == 100
        copying._report_written = told
        copying._report_written("orders")
        b._hub.flush()
        await asyncio.wait_for(waiting, 60)
        assert (await got.recv(timeout=60)).payload == b"last"


async def test_without_its_mirror_a_stream_waits_and_goes_on(nodes, caplog):
    a, b = await nodes.pair(wait=0.3)
    told = []
    notice = lambda kind, about: told.append((kind, about.get("stream") or about["name"]))  # noqa: E731
    mirroring(a)._notice = mirroring(a).ack_waits._notice = notice
    bus = await nodes.client(a)
    made = await bus.create_stream("orders", ["orders/**"], safety="mirrored")
    await follows(a, b)
    await bus.publish("orders/1", b"0", durable=True)
    await b.stop()
    await bus.publish("orders/1", b"1", durable=True)  # after a while
    assert (await made.info()).mirrored is False
    assert any("has waited 0.3 s for its mirror" in one for one in caplog.messages)
    assert mirroring(a).ack_waits.alone == 1
    b = await nodes.node("b", mirror_of="a")
    await follows(a, b)

    async def mirrored():
        return (await made.info()).mirrored is True

    await eventually(mirrored)
    await bus.publish("orders/1", b"2", durable=True)
    assert payloads(mirroring(b).copies[a.guid, "orders"].log) == [b"0", b"1", b"2"]
    seen = [
        ("mirrored", "orders"),
        ("mirror_gone", "b"),
        ("unmirrored", "orders"),
        ("mirror", "b"),
        ("mirrored", "orders"),
    ]
    assert told == seen


async def test_a_full_disk_of_the_mirror_stops_it_and_is_told(nodes, monkeypatch, caplog):
    monkeypatch.setattr("busway.cluster.replication.replica_driver.RETRY", 0.1)
    a, b = await nodes.pair(wait=0.3)
    bus = await nodes.client(a)
    made = await bus.create_stream("orders", ["orders/**"], safety="mirrored")
    await follows(a, b)
    notices, notice = [], mirroring(a)._notice
    mirroring(a)._notice = lambda kind, about: (notices.append((kind, about)), notice(kind, about))
    monkeypatch.setattr(copies_, "free", lambda folder: 1000)
    await bus.publish("orders/1", b"0", durable=True)
    assert (await made.info()).mirrored is False
    assert any("too full" in one for one in caplog.messages)

    async def tried(times):
        async def so_often():
            return mirroring(b).replica.troubles > times

        await eventually(so_often)

    await tried(3)
    monkeypatch.setattr(copies_, "free", lambda folder: 2000)  # another number of bytes is the same trouble
    await tried(6)
    assert "too full" in mirroring(a).figures()["mirrors"][0]["streams"]["orders"]["trouble"]
    assert "too full" in mirroring(b).figures()["mirror_of"]["streams"]["orders"]["trouble"]
    monkeypatch.undo()
    await follows(a, b)
    assert sum("can't copy stream 'orders':" in one for one in caplog.messages) == 1
    assert sum("can't copy stream 'orders' of a" in one for one in caplog.messages) == 1
    happened = [kind for kind, about in notices if about.get("stream") == "orders" and kind.startswith("mirror_")]
    assert happened == ["mirror_trouble", "mirror_copies"]
    assert mirroring(a).figures()["mirrors"][0]["streams"]["orders"]["trouble"] is None
    assert mirroring(b).figures()["mirror_of"]["streams"]["orders"]["trouble"] is None
    await eventually(lambda: asyncio.sleep(0, streams(a)["orders"].mirrored))
    assert payloads(mirroring(b).copies[a.guid, "orders"].log) == [b"0"]


async def test_a_write_that_fails_at_the_mirror_is_told_and_tried_again(nodes, monkeypatch, caplog):
    monkeypatch.setattr("busway.cluster.replication.replica_driver.RETRY", 0.1)
    disk = SimulatedFiles()

    def opened(folder, **settings):
        return Log.open(
            disk if "mirrors" in str(folder) and str(folder).endswith("default/log") else folder, **settings
        )

    monkeypatch.setattr("busway.common.environment.open_log", opened)
    a, b = await nodes.pair()
    bus = await nodes.client(a)
    await bus.publish("t", b"0", durable=True)
    await follows(a, b)
    disk.fail(room=10)
    await bus.publish("t", b"1", durable=True)

    async def told():
        return mirroring(b).replica.troubles > 0

    await eventually(told)
    assert any("can't copy" in one for one in caplog.messages)
    disk.fail()
    await follows(a, b)
    assert payloads(mirroring(b).copies[a.guid, "default"].log) == [b"0", b"1"]
