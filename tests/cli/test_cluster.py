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
    while json.loads(await watching.line())["nodes"][1]["state"] != "lost":
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
    assert findings["cluster"]["state"] == "warn"
    assert "not linked: east" in findings["cluster"]["text"]
    assert told.code == 0
