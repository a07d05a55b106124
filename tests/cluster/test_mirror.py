"""Mirrors over real sockets: a full copy of what another node stores, kept up to date, and waited for where a stream asks for it."""

import asyncio
import json
import logging
import shutil
import signal
import sys
from contextlib import AsyncExitStack
from itertools import count

import pytest

import busway
from busway._core import Log, SimulatedFiles, block_records
from busway.cluster import copies as copies_
from tests.cluster.test_mesh import FAST, Cluster
from tests.support.net import eventually


class Mirrored(Cluster):
    """A node `a` and its mirror `b`, each with a data folder; both can be stopped and started again."""

    def __init__(self, stack, folder):
        super().__init__(stack)
        self.folder = folder
        self.ports = {}

    async def node(self, name, *, mirror_of=None, wait=60.0, data=True, takeover=0.8):
        servers = [
            busway.cluster.servers.Listed(f"tcp://127.0.0.1:{port}", reconnect=FAST)
            for other, port in self.ports.items()
            if other != name
        ]
        place = busway.Cluster(name="test", servers=servers, mirror_of=mirror_of, mirror_wait=wait, takeover=takeover)
        server = busway.serve(
            f"tcp://127.0.0.1:{self.ports.get(name, 0)}",
            name=name,
            cluster=place,
            data=self.folder / name if data else None,
        )
        await self.stack.enter_async_context(server)
        self.ports[name] = int(server.addresses[0].rpartition(":")[2])
        return server

    async def pair(self, **more):
        a = await self.node("a", **more)
        b = await self.node("b", mirror_of="a")
        await follows(a, b)
        return a, b


@pytest.fixture
async def nodes(tmp_path):
    async with AsyncExitStack() as stack:
        yield Mirrored(stack, tmp_path)


def mirroring(server):
    return server._hub.nodes.mirroring


def streams(server):
    return server._hub.streaming.streams


def content(log, begin=0):
    """The records of a log as they are."""
    out, at = [], begin
    while at < log.written:
        _, at, block = log.read_written(at, 1 << 20)
        out.append(block)
    return b"".join(out)


def payloads(log):
    return [row[4] for row in block_records(content(log))]


async def follows(a, b):
    """The mirror has all that the node has."""

    async def equal():
        copies = mirroring(b).copies
        return mirroring(a).mirrored and all(
            (copy := copies.get((a.guid, name))) is not None
            and copy.log.written == stream.log.written
            and mirroring(a)._origins[next(iter(mirroring(a)._origins))].streams[name].have == stream.log.written
            for name, stream in streams(a).items()
        )

    await eventually(equal)


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
    assert not [one for one in caplog.messages if "copied whole" in one]
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
    assert any("the old copy" in one for one in caplog.messages)
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
        copy = mirroring(b).copies[a.guid, "orders"]
        floors = {name: state.floor for name, state in copy.journal._states.items()}
        return floors == {"early": 4, "late": 6}

    await eventually(copied)
    assert mirroring(b).copies[a.guid, "orders"].journal._states["early"].config.lease == 7.0
    await bus.remove_channel("orders", "early")

    async def gone():
        return set(mirroring(b).copies[a.guid, "orders"].journal._states) == {"late"}

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


# Acknowledgements that wait.


async def test_mirrored_needs_a_mirror(nodes):
    a = await nodes.node("a")
    bus = await nodes.client(a)
    with pytest.raises(busway.Rejected, match="--mirror-of"):
        await bus.create_stream("orders", ["orders/**"], safety="mirrored")
    with pytest.raises(ValueError, match="on disk"):
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
        return "a client of a can do this" in str(refused.value)

    await eventually(named)
    with pytest.raises(ValueError, match="this broker itself"):
        busway.serve(name="a", data=nodes.folder / "c", cluster=busway.Cluster(mirror_of="a"))
    with pytest.raises(ValueError, match="folder for its copies"):
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
        copying = mirroring(b).copying
        copying._told, told = lambda name: None, copying._told
        waiting = asyncio.create_task(bus.publish("orders/1", b"last", durable=True))

        async def there():
            return mirroring(b).copies[a.guid, "orders"].log.written == 101

        await eventually(there)
        await made.info()
        assert not waiting.done()
        assert streams(a)["orders"].log.safe == 100
        copying._told = told
        copying._told("orders")
        b._hub.flush()
        await asyncio.wait_for(waiting, 60)
        assert (await got.recv(timeout=60)).payload == b"last"


async def test_without_its_mirror_a_stream_waits_and_goes_on(nodes, caplog):
    a, b = await nodes.pair(wait=0.3)
    told = []
    mirroring(a).notice = lambda kind, about: told.append((kind, about.get("stream") or about["name"]))
    bus = await nodes.client(a)
    made = await bus.create_stream("orders", ["orders/**"], safety="mirrored")
    await follows(a, b)
    await bus.publish("orders/1", b"0", durable=True)
    await b.stop()
    await bus.publish("orders/1", b"1", durable=True)  # after a while
    assert (await made.info()).mirrored is False
    assert any("has waited 0.3 s for its mirror" in one for one in caplog.messages)
    assert mirroring(a).alone == 1
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
    monkeypatch.setattr("busway.cluster.copying.RETRY", 0.1)
    a, b = await nodes.pair(wait=0.3)
    bus = await nodes.client(a)
    made = await bus.create_stream("orders", ["orders/**"], safety="mirrored")
    await follows(a, b)
    monkeypatch.setattr(copies_, "free", lambda folder: 1000)
    await bus.publish("orders/1", b"0", durable=True)
    assert (await made.info()).mirrored is False
    assert any("too full" in one for one in caplog.messages)

    async def told():  # but for a moment when it is tried again
        return "too full" in (mirroring(a).figures()["mirrors"][0]["streams"]["orders"]["trouble"] or "")

    await eventually(told)
    monkeypatch.undo()
    await follows(a, b)
    await eventually(lambda: asyncio.sleep(0, streams(a)["orders"].mirrored))
    assert payloads(mirroring(b).copies[a.guid, "orders"].log) == [b"0"]


async def test_a_write_that_fails_at_the_mirror_is_told_and_tried_again(nodes, monkeypatch, caplog):
    monkeypatch.setattr("busway.cluster.copying.RETRY", 0.1)
    disk = SimulatedFiles()

    def opened(folder, **settings):
        return Log.open(disk if "mirrors" in str(folder) and "default" in str(folder) else folder, **settings)

    monkeypatch.setattr("busway.ambient.open_log", opened)
    a, b = await nodes.pair()
    bus = await nodes.client(a)
    await bus.publish("t", b"0", durable=True)
    await follows(a, b)
    disk.fail(room=10)
    await bus.publish("t", b"1", durable=True)

    async def told():
        return mirroring(b).copying.troubles > 0

    await eventually(told)
    assert any("can't be copied" in one for one in caplog.messages)
    disk.fail()
    await follows(a, b)
    assert payloads(mirroring(b).copies[a.guid, "default"].log) == [b"0", b"1"]


# A node that comes back.


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
    assert any("no mirror has come" in one for one in caplog.messages)
    await bus.close()
    await a.stop()
    caplog.clear()
    a = await nodes.node("a", wait=60.0)
    bus = await nodes.client(a)
    await bus.publish("t", b"2", durable=True)  # and nobody is waited for again
    assert payloads(streams(a)["default"].log) == [b"0", b"1", b"2"]


# Processes that are killed.


class Process:
    """`busway serve` in a process of its own."""

    def __init__(self, folder, name, *flags):
        self.data = folder / name
        self._arguments = ["--name", name, "--data", str(self.data), "--cluster", "test", *flags]
        self.port = 0

    async def start(self):
        arguments = ["-m", "busway", "serve", "--json", "--quiet", "--tcp", f"127.0.0.1:{self.port}", *self._arguments]
        self._process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
        said = json.loads(await asyncio.wait_for(self._process.stdout.readline(), 60))
        self.address, self.guid = said["addresses"][0], said["guid"]
        self.port = int(self.address.rpartition(":")[2])
        return self

    async def end(self, number=signal.SIGTERM):
        if self._process.returncode is None:
            self._process.send_signal(number)
            await asyncio.wait_for(self._process.wait(), 60)
            self._process._transport.close()


@pytest.fixture
async def processes(tmp_path):
    async with AsyncExitStack() as stack:

        async def start(name, *flags):
            process = await Process(tmp_path, name, *flags).start()
            stack.push_async_callback(process.end)
            return process

        yield start


async def is_mirrored(bus, stream):
    async def mirrored():
        try:
            return (await (await bus.stream(stream)).info()).mirrored is True
        except busway.Disconnected:
            return False

    await eventually(mirrored)


async def make_mirrored(bus):
    """A stream `orders` that waits for the mirror, as soon as there is one."""

    async def made():
        try:
            await bus.create_stream("orders", ["orders/**"], safety="mirrored")
        except busway.Rejected:
            return False
        return True

    await eventually(made)


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
