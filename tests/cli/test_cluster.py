"""`busway cluster`, and the output of other verbs about a cluster."""

import json
import signal

import pytest

import busway
from busway.broker.streams import set_aside
from busway.broker.streams.folder import read
from tests.support.net import until
from tests.support.promotion import whole


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
    node, link = (line for line in done.lines if line.startswith("east"))
    assert east.guid[:8] in node
    assert east.addresses[0] in node
    assert " ms " in link


async def test_no_cluster(shell):
    done = await shell.run("cluster")
    assert (done.code, done.out) == (1, b"")
    assert "in no cluster" in done.notes
    assert "busway serve --cluster" in done.notes


async def test_help_tells_how_it_ends_and_who_may_promote(shell):
    done = await shell.run("cluster", "--help")
    assert "Exit code 1: the broker is in no cluster" in " ".join(done.out.decode().split())
    done = await shell.run("cluster", "promote", "--help")
    assert "Any client of the mirror may do this" in " ".join(done.out.decode().split())


async def test_one_of_each(shell):
    """Words for one thing, which are others than those for several."""
    async with (
        busway.serve("tcp://127.0.0.1:0", name="west", cluster="shop") as west,
        west.connect() as bus,
        bus.subscribe("t"),
    ):
        assert "interest 1 subscription or service" in await summary(shell, west)
        assert (await findings(shell, west))["cluster"]["text"] == "shop, 1 node"
        west._hub.peers.members.reports.conflicts = 1
        assert (await findings(shell, west))["cluster"]["text"] == "shop, 1 node; 1 conflict"


async def test_a_mirror_that_is_started_again_without_its_node(shell, tmp_path, caplog, monkeypatch):
    """It has copies of the node, so that was seen."""
    monkeypatch.setattr("busway.cluster.replication.replica_driver.UNSEEN", 0.2)
    async with node(tmp_path, "west") as west:
        async with node(tmp_path, "east", west, mirror_of="west"), west.connect() as bus:
            await bus.publish("t", b"1", durable=True)
            await until(lambda: west._hub.peers.streams.mirrored)
            await until(
                lambda: all(one["behind"] == 0 for one in west._hub.peers.members.replication.figures()["mirrors"])
            )
        guid = west.guid
    async with node(tmp_path, "east", mirror_of="west") as east:
        await until(lambda: east._hub.peers.members.replication.replica._report_missing_at is None)
        assert f"mirror of {guid[:8]}, not linked, backlog unknown" in await summary(shell, east)
        told = (await findings(shell, east))["cluster"]["text"]
        assert told.startswith(f"shop, 1 node; the channels of {guid[:8]} wait: start it")
    assert "no node with that name" not in caplog.text


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
    assert "not linked: north (" in findings["cluster"]["text"], "and why"
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
    place = busway.Cluster(name="shop", servers=[one.addresses[0] for one in known], **more)
    return busway.serve("tcp://127.0.0.1:0", name=name, data=folder / name, cluster=place)


async def test_mirrors(shell, tmp_path):
    async with (
        node(tmp_path, "west") as west,
        node(tmp_path, "east", west, mirror_of="west") as east,
        node(tmp_path, "south", west, east) as south,
    ):
        await until(lambda: west.stats()["links"] == south.stats()["links"] == 2 and west._hub.peers.streams.mirrored)
        async with west.connect() as bus, south.connect() as there, there.subscribe("$bus/cluster/**") as happens:
            await bus.create_stream("orders", ["orders/**"], safety="mirrored")
            event = await happens.recv(timeout=20)
            assert (event.topic, event.fields["stream"]) == ("$bus/cluster/unmirrored", "orders")
            assert (await (await bus.stream("orders")).info()).mirrored is True
            assert (await (await there.stream("orders")).info()).mirrored is False
        lines = await summary(shell, west)
        assert "mirrored by east, 0 behind" in lines
        assert "waits for its mirror orders" in lines
        assert "mirror of west, linked, 0 behind" in await summary(shell, east)
        assert "not mirrored orders: acknowledged without a mirror; start one with --mirror-of" in await summary(
            shell, south
        )
        told = (await findings(shell, south))["cluster"]
        assert (told["state"], told["text"]) == ("warn", "shop, 3 nodes; no mirror has the stream orders")
        await whole(east, west)
        await west.stop()
        lines = await summary(shell, east)
        assert "mirror of west, not linked, backlog unknown" in lines
        waits = f"the channels of west wait: start it, or 'busway cluster promote {west.guid[:8]}' here"
        assert any(waits in line for line in lines)
        assert waits in (await findings(shell, east))["cluster"]["text"]


async def test_promoting_a_mirror(shell, tmp_path):
    async with node(tmp_path, "west") as west, node(tmp_path, "east", west, mirror_of="west") as east:
        async with west.connect() as bus:
            await bus.create_stream("orders", ["orders/**"])
            await bus.publish("orders/1", b"1", durable=True)
            await whole(east, west)
        url = east.addresses[0]
        for name, why in {"west": "runs and owns these streams: stop it first", "south": "has copies here"}.items():
            done = await shell.run("cluster", "promote", name, "--url", url)
            assert (done.code, done.out) == (1, b"")
            assert why in " ".join(done.notes.split())
        await west.stop()
        done = await shell.run("cluster", "promote", "west", "--json", "--url", url)
        assert done.code == 0
        found = json.loads(done.out)
        assert found == {"guid": west.guid, "epoch": 2, "streams": ["default", "orders"], "missing": []}
        assert "owns west since epoch 2" in await summary(shell, east)
        told = await shell.run("cluster", "promote", "west", "--url", url)
        assert "owns the streams of west" in " ".join(told.notes.split())


async def test_recovering_what_was_set_aside(shell, tmp_path):
    async with node(tmp_path, "west") as west, west.connect() as bus:
        done = await shell.run("stream", "recover", "--url", west.addresses[0])
        assert (done.code, done.out) == (0, b"")
        assert "nothing is set aside" in done.notes
        await bus.create_stream("orders", ["orders/**"])
        for number in range(5):
            await bus.publish("orders/1", str(number), durable=True)
        guid = west.guid
    stream = tmp_path / "west" / "streams" / "orders"
    set_aside.put(tmp_path / "west", stream, read(stream), guid, 3, 5)
    async with node(tmp_path, "west") as west, west.connect() as bus:
        url = ("--url", west.addresses[0])
        done = await shell.run("stream", "recover", "--json", *url)
        (aside,) = map(json.loads, done.lines)
        assert (aside["stream"], aside["count"]) == ("orders", 2)
        assert "orders 2 3 5" in " ".join((await shell.run("stream", "recover", *url)).out.decode().split())
        assert "2 records that only this node has are set aside" in (await findings(shell, west))["cluster"]["text"]
        done = await shell.run("stream", "recover", aside["folder"], "--json", *url)
        assert [json.loads(line)["payload"] for line in done.lines] == ["3", "4"]
        async with bus.subscribe("orders/**") as orders:
            done = await shell.run("stream", "recover", aside["folder"], "--publish", *url)
            assert done.code == 0
            assert "2 messages published again" in done.notes
            assert [(await orders.recv(timeout=60)).text for _ in range(2)] == ["3", "4"]
        done = await shell.run("stream", "recover", "--publish", *url)
        assert done.code == 2


async def test_a_node_to_be_mirrored_that_nobody_has_seen(shell, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("busway.cluster.replication.replica_driver.UNSEEN", 0.5)
    async with (
        node(tmp_path, "west") as west,
        node(tmp_path, "east", west, mirror_of="wset") as east,
        east.connect() as bus,
        bus.subscribe("$bus/cluster/mirror_missing") as happens,
    ):
        assert "'wset'" in (await happens.recv(timeout=20)).text
        assert "no node with the name, guid or address 'wset' was seen yet" in caplog.text
        assert "mirror of 'wset': no node with that name, guid or address was seen" in await summary(shell, east)
        told = (await findings(shell, east))["cluster"]
        assert told["state"] == "warn"
        assert "--mirror-of 'wset': no node with that name, guid or address was seen" in told["text"]


async def test_why_a_server_of_the_list_is_not_linked(shell, server):
    place = busway.Cluster(
        name="shop", servers=[busway.cluster.members.servers_file.Listed(server.addresses[0], "south")]
    )
    async with busway.serve("tcp://127.0.0.1:0", name="west", cluster=place) as west:
        await until(lambda: west.stats()["nodes_refused"] == 1)
        lines = await summary(shell, west)
        assert "listed, but not linked" in lines
        assert f"south {server.addresses[0]} refused this broker is in no cluster" in lines
        told = (await findings(shell, west))["cluster"]
        assert told["state"] == "warn"
        assert "not linked: south (this broker is in no cluster)" in told["text"]


async def test_an_address_where_nobody_is_is_told_once(shell):
    place = busway.Cluster(name="shop", servers=["127.0.0.1:1"])
    async with busway.serve("tcp://127.0.0.1:0", name="west", cluster=place) as west:
        await until(lambda: west._hub.peers.members.members.missing[0].why)
        assert "tcp://127.0.0.1:1 unreached Connection refused" in await summary(shell, west)
        told = (await findings(shell, west))["cluster"]["text"]
        assert told == "shop, 1 node; not linked: tcp://127.0.0.1:1 (Connection refused)"


@pytest.mark.parametrize("both", [True, False])
async def test_serve_links_by_tls(shell, certificates, both):
    """With its own authority: both sides show certificates, or only who is dialled."""
    shown = {"cert": certificates.server, "key": certificates.server_key}
    tls = busway.TLS(**shown, ca=certificates.ca if both else None)
    place = busway.Cluster(name="shop", tls=busway.TLS(**shown, ca=certificates.ca))
    async with busway.serve("tls://127.0.0.1:0", name="west", tls=tls, cluster=place) as west:
        await shell.start(
            *("serve", "--tls", "127.0.0.1:0", "--cert", certificates.server, "--key", certificates.server_key),
            *("--ca" if both else "--cluster-ca", certificates.ca),
            *("--cluster", "shop", "--servers", west.addresses[0]),
        )
        await until(lambda: west.stats()["links"] == 1)


async def test_an_authority_for_links_that_is_none(shell, certificates, tmp_path):
    listening = ("serve", "--for", "10ms", "--tcp", "127.0.0.1:0")
    done = await shell.run(*listening, "--cluster", "shop", "--cluster-ca", tmp_path / "none.pem")
    assert (done.code, done.out) == (2, b"")
    assert "none.pem" in done.notes
    done = await shell.run(*listening, "--cluster-ca", certificates.ca)
    assert (done.code, done.out) == (2, b"")
    assert "--cluster-ca" in done.notes


async def test_why_a_mirror_is_behind(shell, tmp_path, monkeypatch):
    monkeypatch.setattr("busway.cluster.replication.replica_driver.RETRY", 0.1)
    async with node(tmp_path, "west") as west:
        async with node(tmp_path, "east", west, mirror_of="127.0.0.1:" + west.addresses[0].rpartition(":")[2]) as east:
            await until(lambda: west._hub.peers.streams.mirrored)
            monkeypatch.setattr("busway.cluster.replication.copies.free", lambda folder: 1000)
            async with west.connect() as bus:
                await bus.publish("t", b"1", durable=True)
            await until(lambda: east._hub.peers.members.replication.replica.troubles > 0)
            why = "can't be mirrored: the disk of the mirror is too full: 0.0 MiB are free, of which 64 MiB are reserved for others"
            await until(
                lambda: west._hub.peers.members.replication.figures()["mirrors"][0]["streams"]["default"]["trouble"]
            )
            assert f"its mirror east: default {why}" in (await findings(shell, west))["cluster"]["text"]
            assert f"as a mirror: default {why}" in (await findings(shell, east))["cluster"]["text"]
            why = "1 behind; default can't be mirrored: the disk of the mirror is too full"
            assert any(f"mirrored by east, {why}" in line for line in await summary(shell, west))
            assert any(f"mirror of west, linked, {why}" in line for line in await summary(shell, east))


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
