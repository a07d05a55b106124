"""The store and the safety of messages in the output of `serve`, `pub --durable`, `info`, `stream` and `doctor`."""

import json
import signal

import pytest

import busway


@pytest.fixture(params=["memory", "disk"])
async def storage(request):
    return request.param


@pytest.fixture
async def server(tmp_path, storage):
    data = tmp_path / "data" if storage == "disk" else None
    async with busway.serve("tcp://127.0.0.1:0", name="shell", data=data) as server:
        yield server


LEVEL = {"memory": "memory", "disk": "written"}


async def test_pub_prints_the_level(shell, bus, storage):
    done = await shell.run("pub", "a", "1", "--durable")
    (line,) = done.lines
    assert busway.Position.parse(line).stream == "default"
    assert ("stream 'default' is in memory" in " ".join(done.notes.split())) == (storage == "memory")
    record = json.loads((await shell.run("pub", "a", "2", "--durable", "--json")).out)
    assert (record["safety"], record["offset"]) == (LEVEL[storage], 1)


async def test_lists_show_the_level(shell, bus, storage):
    (line,) = [line for line in (await shell.run("stream", "list")).lines if line.startswith("default ")]
    assert line.split()[3:5] == [storage, LEVEL[storage]]
    assert json.loads((await shell.run("stream", "info", "default", "--json")).out)["level"] == LEVEL[storage]
    shown = await shell.run("info", "--no-connections")
    assert any(
        line.split()[:2] == ["storage", storage.split(":", maxsplit=1)[0]] or "streams are lost" in line
        for line in shown.lines
    )
    found = json.loads((await shell.run("info", "--json")).out)
    assert found["storage"] == storage
    assert (found["disk"] is None) == (storage == "memory")


async def test_doctor_warns_of_streams_in_memory(shell, bus, server, storage):
    told = await shell.run("doctor", "--json", "--url", server.addresses[0])
    (found,) = [one for one in map(json.loads, told.lines) if one["check"] == "storage"]
    assert found["state"] == ("warn" if storage == "memory" else "ok")
    assert ("--data DIR" in found["text"]) == (storage == "memory")


@pytest.mark.parametrize("data", [False, True])
async def test_serve_says_where_streams_are(shell, tmp_path, data):
    given = ("--data", tmp_path / "served") if data else ()
    serving = await shell.start("serve", "--tcp", "127.0.0.1:0", "--json", *given, "--min-free-disk", "1MB")
    told = json.loads(await serving.line())
    assert told["storage"] == ("disk" if data else "memory")
    async with busway.connect(told["addresses"][0]) as client:
        disk = (await client.info())["disk"]
        assert (disk["floor"] if data else disk) == ((1 << 20) if data else None)
    notes = " ".join((await serving.end(signal.SIGTERM)).notes.split())
    assert ("end with this process; --data DIR stores them on disk" in notes) is not data
    assert ("streams are on disk, in" in notes) is data


async def test_a_broker_with_too_little_free_space(shell, tmp_path):
    settings = busway.Settings(min_free_disk=1 << 60)
    async with busway.serve("tcp://127.0.0.1:0", data=tmp_path / "low", settings=settings) as low:
        done = await shell.run("pub", "a", "1", "--durable", "--url", low.addresses[0])
        notes = " ".join(done.notes.split())
        assert done.code != 0
        assert "it keeps free (min_free_disk)" in notes
        assert "with a lower --min-free-disk" in notes
        told = await shell.run("doctor", "--json", "--url", low.addresses[0])
        (found,) = [one for one in map(json.loads, told.lines) if one["check"] == "storage"]
        assert found["state"] == "warn"
        assert "durable publishes are refused" in found["text"]
