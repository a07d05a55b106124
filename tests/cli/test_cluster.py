"""`busway cluster`, and what the other verbs say of a cluster."""

import json
import signal

import pytest

import busway
from tests.support.net import until


@pytest.fixture
async def pair():
    async with (
        busway.serve("tcp://127.0.0.1:0", name="west", cluster="shop") as west,
        busway.serve("tcp://127.0.0.1:0", name="east", cluster="shop", servers=list(west.addresses)) as east,
    ):
        await until(lambda: west.stats()["links"] == east.stats()["links"] == 1)
        yield west, east


async def test_nodes_and_links(shell, pair):
    west, east = pair
    done = await shell.run("cluster", "--json", "--url", west.addresses[0])
    assert done.code == 0
    found = json.loads(done.out)
    assert [(one["name"], one["state"]) for one in found["nodes"]] == [("west", "this"), ("east", "linked")]
    assert found["nodes"][1]["link"]["round_trip"] > 0
    done = await shell.run("cluster", "--url", west.addresses[0])
    assert done.code == 0
    text = done.out.decode()
    assert "2: this one, 1 linked, 0 lost" in text
    row = next(line for line in done.lines if line.startswith("east"))
    assert east.guid[:8] in row
    assert east.addresses[0] in row
    assert " ms " in row


async def test_no_cluster(shell):
    done = await shell.run("cluster")
    assert (done.code, done.out) == (1, b"")
    assert "in no cluster" in done.notes
    assert "busway serve --cluster" in done.notes


async def test_watching(shell, pair):
    west, east = pair
    watching = await shell.start("cluster", "--watch", "--json", "--url", west.addresses[0])
    first = json.loads(await watching.line())
    assert first["nodes"][1]["state"] == "linked"
    await east.stop()
    while json.loads(await watching.line())["nodes"][1]["state"] != "stopped":
        pass
    done = await watching.end(signal.SIGINT)
    assert done.code == 130


async def test_info_and_doctor_tell_of_it(shell, pair):
    west, east = pair
    done = await shell.run("info", "--url", west.addresses[0])
    assert "cluster" in done.out.decode()
    assert "shop" in done.out.decode()
    told = await shell.run("doctor", "--json", "--url", west.addresses[0])
    findings = {one["check"]: one for one in map(json.loads, told.lines)}
    assert findings["cluster"] == {"check": "cluster", "state": "ok", "text": "shop, 2 nodes"}
    await east.stop()
    await until(lambda: west.stats()["links"] == 0)
    told = await shell.run("doctor", "--json", "--url", west.addresses[0])
    findings = {one["check"]: one for one in map(json.loads, told.lines)}
    assert findings["cluster"] == {"check": "cluster", "state": "ok", "text": "shop, 2 nodes, 1 stopped"}
    known = west.addresses[0].removeprefix("tcp://")
    north = await shell.start(
        *("serve", "--tcp", "127.0.0.1:0", "--name", "north", "--cluster", "shop", "--servers", known)
    )
    await until(lambda: west.stats()["links"] == 1)
    north.process.kill()
    await until(lambda: west.stats()["links"] == 0)
    told = await shell.run("doctor", "--json", "--url", west.addresses[0])
    findings = {one["check"]: one for one in map(json.loads, told.lines)}
    assert findings["cluster"]["state"] == "warn"
    assert "not linked: north" in findings["cluster"]["text"]
    assert told.code == 0
    done = await shell.run("cluster", "--url", west.addresses[0])
    assert "3: this one, 0 linked, 1 stopped, 1 lost" in done.out.decode()
    assert "None" not in done.out.decode()


async def findings(shell, server):
    told = await shell.run("doctor", "--json", "--url", server.addresses[0])
    assert told.code == 0
    return {one["check"]: one for one in map(json.loads, told.lines)}


async def summary(shell, server):
    """What the lines above the table of nodes say."""
    done = await shell.run("cluster", "--url", server.addresses[0])
    assert done.code == 0
    return [" ".join(line.split()) for line in done.out.decode().splitlines()]


def node(folder, name, *known, **more):
    place = busway.Cluster(name="shop", servers=[one.addresses[0] for one in known], takeover=0.8, **more)
    return busway.serve("tcp://127.0.0.1:0", name=name, data=folder / name, cluster=place)


async def test_mirrors(shell, tmp_path):
    async with (
        node(tmp_path, "west") as west,
        node(tmp_path, "east", west, mirror_of="west") as east,
        node(tmp_path, "south", west, east) as south,
    ):
        await until(lambda: west.stats()["links"] == south.stats()["links"] == 2 and west._hub.nodes.mirrored)
        async with west.connect() as bus, south.connect() as there, there.subscribe("$bus/cluster/**") as happens:
            await bus.create_stream("orders", ["orders/**"], safety="mirrored")
            event = await happens.recv(timeout=20)
            assert (event.topic, event.fields["stream"]) == ("$bus/cluster/unmirrored", "orders")
            assert (await (await bus.stream("orders")).info()).mirrored is True
            assert (await (await there.stream("orders")).info()).mirrored is False
        lines = await summary(shell, west)
        assert "mirrored by east, 0 behind" in lines
        assert "waits for its mirror orders" in lines
        assert "hands out its own channels" in lines
        assert "take-overs 0" in lines
        assert "mirror of west, linked, 0 behind" in await summary(shell, east)
        assert "not mirrored orders: acknowledged without a mirror" in await summary(shell, south)
        told = (await findings(shell, south))["cluster"]
        assert (told["state"], told["text"]) == ("warn", "shop, 3 nodes; no mirror has the streams orders")
        await until(lambda: east._hub.nodes.turns._heir.ready(west.guid))
        await west.stop()
        await until(lambda: east._hub.nodes.turns.takeovers == 1)
        lines = await summary(shell, east)
        assert "mirror of west, not linked, 0 behind" in lines
        assert "hands out for west" in lines
        assert "take-overs 1" in lines


async def test_a_node_to_be_mirrored_that_nobody_has_seen(shell, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("busway.cluster.copying.UNSEEN", 0.5)
    async with (
        node(tmp_path, "west") as west,
        node(tmp_path, "east", west, mirror_of="wset") as east,
        east.connect() as bus,
        bus.subscribe("$bus/cluster/mirror_missing") as happens,
    ):
        assert "'wset'" in (await happens.recv(timeout=20)).text
        assert "a mirror of 'wset', and no node with that name, guid or address was seen" in caplog.text
        assert "mirror of 'wset': no node with that name, guid or address was seen" in await summary(shell, east)
        told = (await findings(shell, east))["cluster"]
        assert told["state"] == "warn"
        assert "is to mirror 'wset', and no such node was seen" in told["text"]


async def test_what_a_node_lacks(shell):
    few = busway.Settings(streams=1)
    async with (
        busway.serve("tcp://127.0.0.1:0", name="west", cluster="shop") as west,
        busway.serve("tcp://127.0.0.1:0", name="east", cluster="shop", servers=west.addresses, settings=few) as east,
        west.connect() as bus,
    ):
        await until(lambda: west.stats()["links"] == east.stats()["links"] == 1)
        await bus.create_stream("late", ["late/**"])
        await bus.create_channel("late", "billing")
        assert (await findings(shell, west))["cluster"]["state"] == "ok"
        told = (await findings(shell, east))["cluster"]
        assert told["state"] == "warn"
        assert "the stream 'late' can't be made: there are 1 streams already (setting streams)" in told["text"]
        assert "the channel 'billing' of the stream 'late' can't be made: there is no stream 'late'" in told["text"]
        lines = await summary(shell, east)
        assert any(line.startswith("the stream 'late' can't be made there are 1 streams already") for line in lines)
        assert not any("late" in line for line in await summary(shell, west))
