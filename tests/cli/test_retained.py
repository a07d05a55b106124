"""`busway post`, `pin`, `unpin`, `kept` and `serve --data`: which messages are retained, how long, and the output."""

import json
import signal

import pytest

import busway


async def test_a_post_lasts_as_long_as_its_command(shell, bus):
    async with bus.subscribe("proc/*", watch=True) as watching:
        post = await shell.start("post", "proc/hdb", "up", "-f", "host=a1", "--name", "hdb")
        assert "posted on proc/hdb" in await post.ready()
        message = await watching.recv(timeout=60)
        assert (message.kind, message.payload, message.fields) == ("post", b"up", {"host": "a1"})
        listed = await shell.run("kept")
        assert listed.lines == ["post proc/hdb [host=a1] by hdb: up"]
        done = await post.end(signal.SIGINT)
        assert (done.code, done.out) == (130, b"")
        assert (await watching.recv(timeout=60)).kind == "withdrawn"
    assert (await shell.run("kept")).out == b""


@pytest.mark.parametrize("how", ["terminated", "time is up"])
async def test_a_post_that_ends_well(shell, bus, how):
    async with bus.subscribe("t", watch=True) as watching:
        flags = ("--for", "50ms") if how == "time is up" else ()
        post = await shell.start("post", "t", "-", "--quiet", *flags)
        post.process.stdin.write(b"from stdin")
        post.process.stdin.close()
        assert (await watching.recv(timeout=60)).payload == b"from stdin"
        done = await post.end(None if flags else signal.SIGTERM)
        assert (done.code, done.out, done.notes) == (0, b"", "")
        assert (await watching.recv(timeout=60)).kind == "withdrawn"


async def test_a_pin_outlives_its_command(shell, bus):
    done = await shell.run("pin", "config/hdb", '{"threads": 4}', "--name", "manager", "-f", "env=prod")
    assert (done.code, done.out, done.notes) == (0, b"", "")
    (message,) = await bus.kept()
    assert (message.kind, message.topic, message.json()) == ("pin", "config/hdb", {"threads": 4})
    assert (message.sender, message.fields) == ("manager", {"env": "prod"})


async def test_a_pin_takes_the_place_of_the_last(shell, bus, tmp_path):
    (tmp_path / "body").write_bytes(b"from a file")
    for arguments in (("1", "--name", "a"), ("2", "--name", "b"), ("3", "--name", "a", "-f", "n=1")):
        assert (await shell.run("pin", "t", *arguments)).code == 0
    done = await shell.run("pin", "t", "--file", tmp_path / "body", "--name", "a", "--json")
    assert (done.code, json.loads(done.out)) == (0, {"topic": "t", "pinned": True})
    assert [message.payload for message in await bus.kept()] == [b"2", b"3", b"from a file"]


async def test_unpin(shell, bus):
    await shell.run("pin", "t", "x", "--name", "a", "-f", "n=1")
    for arguments in (("--name", "b", "-f", "n=1"), ("--name", "a", "-f", "n=2")):
        done = await shell.run("unpin", "t", *arguments)
        assert (done.code, done.out) == (1, b"")
        assert "busway kept t" in done.notes
    assert len(await bus.kept()) == 1
    done = await shell.run("unpin", "t", "--name", "a", "-f", "n=1", "--json")
    assert (done.code, json.loads(done.out), done.notes) == (0, {"topic": "t", "removed": True}, "")
    assert await bus.kept() == []
    done = await shell.run("unpin", "t", "--name", "a", "-f", "n=1", "--json")
    assert (done.code, json.loads(done.out)) == (1, {"topic": "t", "removed": False})


async def test_kept(shell, bus):
    await bus.post("proc/hdb", b"up\n", fields={"host": "a1", "pid": 7})
    await bus.pin("config/hdb", b"\xff")
    await bus.post("proc/tp", b"down")
    assert (await shell.run("kept")).lines == [
        "post proc/hdb [host=a1 pid=7] by test: up",
        "pin  config/hdb by test: \\xff",
        "post proc/tp by test: down",
    ]
    done = await shell.run("kept", "proc/*", "--json")
    one, two = map(json.loads, done.lines)
    assert (done.code, done.notes) == (0, "")
    assert (one["kind"], one["topic"], one["fields"], one["sender"]) == (
        "post",
        "proc/hdb",
        {"host": "a1", "pid": 7},
        "test",
    )
    assert (two["payload"], two["kept"]) == ("down", True)
    assert (await shell.run("kept", "nothing/**")).lines == []
    assert (await shell.run("kept", "a/**b")).code == 2


async def test_sub_gets_what_is_kept_and_tells_when_that_is_done(shell, bus):
    await bus.post("t", b"1")
    await bus.pin("t", b"2")
    sub = await shell.start("sub", "t", "--notify", "--watch", "--count", 5)
    assert "subscribed" in await sub.ready()
    assert [await sub.line(), await sub.line()] == [b"t <post> 1\n", b"t <pin> 2\n"]
    assert "all retained messages of t have been printed" in await sub.ready()
    await bus.publish("t", b"3")
    await bus.unpost("t")
    await bus.unpin("t")
    done = await sub.end()
    assert (done.code, done.lines) == (0, ["t 3", "t <withdrawn> 1", "t <withdrawn> 2"])


async def test_what_cannot_be_kept(shell, bus):
    for verb, topic, code in (("post", "$bus/x", 5), ("pin", "a//b", 2), ("unpin", "a/**b", 2)):
        done = await shell.run(verb, topic)
        assert (done.code, done.out) == (code, b""), done.notes
        assert "Traceback" not in done.notes


async def test_a_damaged_pin_store_is_told(shell, tmp_path):
    async with busway.serve(data=tmp_path / "data") as server, server.connect() as bus:
        for number in range(5):
            await bus.pin(f"t/{number}", b"x" * 100)
    file = tmp_path / "data" / "pins.log"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    serving = await shell.start("serve", "--tcp", "127.0.0.1:0", "--json", "--data", tmp_path / "data")
    url = json.loads(await serving.line())["addresses"][0]
    assert len((await shell.run("kept", "--url", url)).lines) == 4
    done = await serving.end(signal.SIGTERM)
    assert done.code == 0
    assert "pins.log: a record with a wrong checksum" in done.notes
    assert "pins.log.damaged" in done.notes


async def test_a_data_folder_that_cannot_be_one(shell, tmp_path):
    (tmp_path / "file").write_text("")
    done = await shell.run("serve", "--tcp", "127.0.0.1:0", "--data", tmp_path / "file", "--for", "10ms")
    assert (done.code, done.out) == (1, b"")
    assert str(tmp_path / "file") in done.notes
    assert "Traceback" not in done.notes
