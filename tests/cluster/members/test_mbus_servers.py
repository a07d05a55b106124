"""The sentences of the mbus document about servers, one test each (quotation marks show its words)."""

import asyncio
import json
import socket
import sys
from contextlib import AsyncExitStack

import pytest

import busway
from tests.support.cluster import Cluster, knows, links, until as taken
from tests.support.net import eventually, until, within


@pytest.fixture
async def nodes():
    async with AsyncExitStack() as stack:
        yield Cluster(stack)


@pytest.fixture
async def stack():
    async with AsyncExitStack() as stack:
        yield stack


def port_of(server):
    return int(server.addresses[0].rpartition(":")[2])


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


async def command(stack, *arguments, cwd=None):
    """`busway serve` as a process; what it says of itself."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "busway", "serve", "--json", "-q", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        cwd=cwd,
    )

    async def end():
        if child.returncode is None:
            child.terminate()
        await child.wait()

    stack.push_async_callback(end)
    return json.loads(await within(child.stdout.readline()))


async def test_servers_connect_to_each_other_to_reduce_the_number_of_connections(nodes):
    """ "Servers connect to each other and it is expected that there is only one server per host (or host+cluster, host+dev user
    and etc) to reduce the number of connections"; "clients form a star with a server in the center"."""
    servers = await nodes.several(3)
    clients = [await nodes.client(server) for server in servers for _ in range(4)]
    inboxes = [await nodes.stack.enter_async_context(bus.subscribe("t")) for bus in clients]
    for number, bus in enumerate(clients):
        await knows(bus, "t", 4 + 2)
        await bus.publish("t", str(number).encode())
    await clients[0].publish("t", b"end")
    for inbox in inboxes:
        await taken(inbox)
    for server in servers:
        assert server.stats()["connections"] == 4 + 2


async def test_one_server_per_host_and_cluster(nodes):
    """ "only one server per host (or host+cluster, host+dev user and etc)": servers of several clusters on one host."""
    live, dev = await nodes.start(cluster="live"), await nodes.start(cluster="dev")
    second = await nodes.start(live, dev, cluster="dev")
    await until(lambda: links(second) == {dev.guid})
    assert links(live) == set()


async def test_finding_a_source(nodes):
    """ "it can be used to find the data source/consumer": who has the data says where, at its own server."""
    a, b = await nodes.several(2)
    source, consumer = await nodes.client(a, name="hdb"), await nodes.client(b)
    await source.post("source", b"tcp://hdb:5010", fields={"asset": "stock", "proc": "hdb"})

    async def found():
        kept = await consumer.kept("source", where={"proc": "h*"})
        return [message.payload for message in kept] == [b"tcp://hdb:5010"]

    await eventually(found)


async def test_the_startup_example(stack):
    """ "q core/loader.q -main mbus_server -mservers 3010 -t 100 -p 3010": a list that names just the server itself."""
    port = free_port()
    said = await command(stack, "--tcp", f"127.0.0.1:{port}", "--servers", port)
    bus = await stack.enter_async_context(busway.connect(said["addresses"][0]))
    async with bus.subscribe("t") as inbox:
        await bus.publish("t", b"x")
        assert (await inbox.recv(timeout=60)).payload == b"x"
    found = (await bus.request("$bus/cluster")).json()
    assert (len(found["nodes"]), found["missing"]) == (1, [])


async def test_send_post_and_pin_reach_all_servers(nodes):
    """ "post - message will be saved on the servers while the client is alive and sent to all new subscribers. pin - like post
    but the message will never be deleted (it can be updated)"."""
    a, b, c = await nodes.several(3)
    publisher = await nodes.client(a, name="p")
    await publisher.post("proc", b"up")
    await publisher.pin("config", b"1")
    await publisher.pin("config", b"2")
    for server in (a, b, c):
        bus = await nodes.client(server)

        async def kept(bus=bus):
            return {message.topic: message.payload for message in await bus.kept()} == {"proc": b"up", "config": b"2"}

        await eventually(kept)
    await publisher.close()
    late = await nodes.client(c)

    async def alone():
        return [message.topic for message in await late.kept()] == ["config"]

    await eventually(alone)


async def test_default_address_fields_of_a_server(nodes):
    """ "optional default address fields (region, host and etc)"; "they will be added to each message": by the server of who sends, and a server
    that passes a message on adds none."""
    a = await nodes.start(fields={"region": "emea"})
    b = await nodes.start(a, fields={"region": "apac", "host": "b"})
    await nodes.whole()
    here, there = await nodes.client(a), await nodes.client(b)
    async with there.subscribe("t", where={"region": "emea"}) as inbox:

        async def reaches():
            return await here.publish("t", b"?", confirm=True) == 1

        await eventually(reaches)
        assert (await inbox.recv(timeout=60)).fields == {"region": "emea"}


async def test_a_list_of_other_servers_that_includes_the_server_itself(stack):
    """ "a list of other servers (may include the server itself)": all have the same list."""
    ports = [free_port() for _ in range(3)]
    servers = [
        await stack.enter_async_context(
            busway.serve(f"tcp://127.0.0.1:{port}", name=str(port), servers=",".join(map(str, ports)))
        )
        for port in ports
    ]
    guids = {one.guid for one in servers}
    await until(lambda: all(links(one) == guids - {one.guid} for one in servers))


async def test_connect_and_reconnect_settings(stack, tmp_path):
    """ "optional connect/reconnect timeout and other IPC connection settings": a server that is not there yet is tried by its schedule."""
    port = free_port()
    entry = {"connection": {"host": "127.0.0.1", "port": port, "reconnectSchedule": ["20ms"], "timeout": "5s"}}
    (tmp_path / "servers.json").write_text(json.dumps([entry]))
    listed = busway.cluster.members.servers_file.read_file(tmp_path / "servers.json")
    assert (listed[0].reconnect, listed[0].timeout) == ((0.02,), 5.0)
    early = await stack.enter_async_context(busway.serve("tcp://127.0.0.1:0", servers=listed))
    bus = await stack.enter_async_context(early.connect())
    assert [one["addresses"] for one in (await bus.request("$bus/cluster")).json()["missing"]] == [
        [f"tcp://127.0.0.1:{port}"]
    ]
    late = await stack.enter_async_context(busway.serve(f"tcp://127.0.0.1:{port}", cluster="busway"))
    await until(lambda: links(early) == {late.guid})


async def test_the_list_by_priority(stack, tmp_path):
    """ "MBus Server list can be passed (by priority): as a parameter in `.sys.use`; in a command line: -mbus srv1:p1,srv2:p2,p3; in a
    config file: servers.json". The file lies in the data folder, or is named."""
    filed = await stack.enter_async_context(busway.serve("tcp://127.0.0.1:0", name="filed", cluster="busway"))
    given = await stack.enter_async_context(busway.serve("tcp://127.0.0.1:0", name="given", cluster="busway"))
    data = tmp_path / "data"
    data.mkdir()
    entry = {"name": "filed", "enabled": True, "connection": {"host": "127.0.0.1", "port": port_of(filed)}}
    (data / "servers.json").write_text(json.dumps([entry]))
    by_file = await command(stack, "--tcp", "127.0.0.1:0", "--data", data)
    await until(lambda: links(filed) == {by_file["guid"]})
    assert links(given) == set()
    text = f"127.0.0.1:{port_of(given)},{port_of(given)}"
    named = tmp_path / "other.json"
    named.write_text(json.dumps([entry]))
    by_line = await command(stack, "--tcp", "127.0.0.1:0", "--servers", text, "--servers-file", named)
    await until(lambda: by_line["guid"] in links(given))
    assert links(filed) == {by_file["guid"]}  # the file was not looked at
    assert (
        busway.cluster.members.servers_file.chosen([given.addresses[0]], text, named)[0].address == given.addresses[0]
    )


async def test_the_format_of_servers_json(stack, tmp_path):
    """The example of the document: name, enabled, address and connection. The fields of `address` are those of the server with that name."""
    other = await stack.enter_async_context(busway.serve("tcp://127.0.0.1:0", name="srv2", cluster="busway"))
    entries = [
        {
            "name": "srv1",
            "enabled": True,
            "address": {"region": "emea", "host": "h1"},
            "connection": {"host": "127.0.0.1", "port": free_port(), "reconnectSchedule": "0D00:01"},
        },
        {"name": "srv2", "address": {"region": "apac"}, "connection": {"host": "127.0.0.1", "port": port_of(other)}},
        {"name": "srv3", "enabled": False, "connection": {"host": "127.0.0.1", "port": 1}},
    ]
    path = tmp_path / "servers.json"
    path.write_text(json.dumps(entries))
    port = entries[0]["connection"]["port"]
    said = await command(
        stack, "--tcp", f"127.0.0.1:{port}", "--name", "srv1", "--servers-file", path, "-f", "host=given"
    )
    await until(lambda: links(other) == {said["guid"]})
    bus = await stack.enter_async_context(busway.connect(said["addresses"][0]))
    async with bus.subscribe("t") as inbox:
        await bus.publish("t", b"x")
        assert (await inbox.recv(timeout=60)).fields == {"region": "emea", "host": "given"}
    assert (await bus.request("$bus/cluster")).json()["missing"] == []
