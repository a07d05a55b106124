"""`busway stream`, `replay`, `pub --durable`, `sub --since`, and the figures of streams in `info`."""

import asyncio
import json
import os
import pty
import signal
import sys

import pyarrow.parquet
import pytest

import busway
from tests.support.net import until


@pytest.fixture
async def server(tmp_path):
    async with busway.serve("tcp://127.0.0.1:0", name="shell", data=tmp_path / "data") as server:
        yield server


@pytest.fixture
async def orders(bus):
    """A stream with three messages; another one is in the default stream."""
    stream = await bus.create_stream("orders", ["orders/**"])
    await bus.publish("orders/eu", b"1", durable=True, fields={"venue": "krk"})
    await bus.publish("orders/us", b"2", durable=True)
    await bus.publish("orders/eu", b"\xff3", durable=True)
    await bus.publish("other", b"4", durable=True)
    return stream


async def test_a_stream_is_made_changed_shown_and_removed(shell, bus):
    made = await shell.run(
        *(
            "stream",
            "create",
            "orders",
            "orders/**",
            "o2",
            "--store",
            "memory",
            "--safety",
            "memory",
            "--max-age",
            "7d",
        ),
        *("--max-bytes", "2m", "--max-count", "10k", "--once", "1m", "--retain-until", "archived", "--json"),
    )
    info = json.loads(made.out)
    assert (made.code, made.notes) == (0, "")
    assert (info["topics"], info["store"], info["safety"]) == (["orders/**", "o2"], "memory", "memory")
    assert (info["max_age"], info["max_bytes"], info["max_count"], info["once"]) == (604800.0, 2 << 20, 10_000, 60.0)
    assert (info["retain_until"], info["held"], info["held_since"]) == ("archived", 0, None)
    done = await shell.run("stream", "update", "orders", "--max-bytes", "none", "--max-age", "none", "--topic", "x/*")
    assert (done.code, done.out, done.notes) == (0, b"", "")
    stream = await bus.stream("orders")
    changed = await stream.info()
    assert (changed.topics, changed.max_age, changed.max_bytes, changed.max_count) == (("x/*",), None, None, 10_000)
    assert changed.retain_until == "archived"
    await shell.run("stream", "update", "orders", "--retain-until", "none")
    assert (await stream.info()).retain_until is None
    await bus.publish("x/1", b"hello", durable=True)
    listed = await shell.run("stream", "list")
    assert [line.split()[:3] for line in listed.lines] == [
        ["stream", "topics", "store"],
        ["default", "all", "others"],
        ["orders", "x/*", "memory"],
    ]
    both = [json.loads(line) for line in (await shell.run("stream", "list", "--json")).lines]
    assert [(one["name"], one["count"]) for one in both] == [("default", 0), ("orders", 1)]
    shown = await shell.run("stream", "info", "orders", "--topics")
    assert {"topics x/*", "next 1", "x/1 1 1 1"} <= {" ".join(line.split()) for line in shown.lines}
    whole = json.loads((await shell.run("stream", "info", "orders", "--topics", "--json")).out)
    assert whole["stored"] == [{"topic": "x/1", "first": 1, "last": 1, "messages": 1}]
    unasked = await shell.run("stream", "remove", "orders")
    assert (unasked.code, unasked.out) == (2, b"")
    assert "'orders' holds 1 messages" in unasked.notes
    assert "--yes" in unasked.notes
    gone = await shell.run("stream", "remove", "orders", "--yes", "--json")
    assert (gone.code, json.loads(gone.out)) == (0, {"name": "orders", "removed": 1})
    assert [one.name for one in await bus.streams()] == ["default"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("stream", "info", "nothing"), 5, "there is no stream 'nothing' ('busway stream list'"),
        (("stream", "remove", "nothing", "--yes"), 5, "there is no stream"),
        (("stream", "remove", "nothing"), 5, "there is no stream"),
        (("stream", "remove", "default", "--yes"), 5, "can't be removed"),
        (("stream", "update", "nothing", "--max-age", "1d"), 5, "there is no stream"),
        (("stream", "update", "orders"), 2, "nothing to change"),
        (("stream", "update", "orders", "--max-count", "few"), 2, "whole number"),
        (("stream", "update", "orders", "--max-age", "soon"), 2, "not a length of time"),
        (("stream", "create", "other", "orders/eu"), 5, "overlaps"),
        (("stream", "create", "orders", "x"), 5, "with other settings"),
        (("stream", "create", "a b", "x"), 2, "not a valid name of a stream"),
        (("stream", "create", "x", "y", "--store", "tape"), 5, "no store 'tape'"),
        (("replay", "orders", "--since", "soon"), 2, "'soon' is not a position"),
        (("replay", "orders", "--since", "2026-13-01"), 2, "is not a time"),
        (("replay", "orders", "--raw", "--json"), 2, "exclude each other"),
        (("replay", "orders", "--follow", "--to", "5"), 2, "no end"),
        (("replay", "orders", "--out", "file.csv"), 2, "give a file with .arrow or .parquet"),
        (("replay", "orders", "--format", "{colour}"), 2, "is not a field of --format"),
        (("replay", "a//b"), 2, "empty segment"),
        (("replay", "nothing", "--since", "5"), 5, "there is no stream 'nothing'"),
        (("replay", "nothing"), 5, "there is no stream 'nothing', and no message is stored"),
        (("replay", "nothing", "--topic", "a"), 5, "there is no stream 'nothing'"),
        (("pub", "t", "x", "--expires", "1h"), 2, "give --durable, too"),
        (("pub", "t", "x", "--durable", "--confirm"), 2, "leave --confirm out"),
        (("pub", "t", "x", "--durable", "--delay", "soon"), 2, "not a length of time"),
        (("pub", "t/*", "x", "--durable"), 2, "one topic"),
        (("sub", "t", "--since", "soon"), 2, "'soon' is not a position"),
        (("sub", "t", "--since", "all", "--group", "g"), 2, "to share stored messages use a channel"),
    ],
)
async def test_what_cannot_be_meant(shell, orders, arguments, code, text):
    done = await shell.run(*arguments)
    assert done.code == code, done.notes
    assert text in " ".join(done.notes.replace("│", " ").split())
    assert done.out == b""


async def test_removing_asks_on_a_terminal(shell, bus, orders):
    for answer, code, left in ((b"n\n", 1, True), (b"y\n", 0, False)):
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "busway", "stream", "remove", "orders"),
            stdin=theirs,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=shell.environment,
        )
        os.close(theirs)
        os.write(ours, answer)
        async with asyncio.timeout(60):
            out, notes = await process.communicate()
        os.close(ours)
        assert (process.returncode, out) == (code, b"")
        assert "Remove the stream 'orders' with 3 messages" in notes.decode()
        assert ("orders" in {one.name for one in await bus.streams()}) == left


async def test_pub_waits_for_the_broker_no_longer_than_its_timeout(shell):
    refused = await shell.run("pub", "a", "1", "--timeout", "1s")
    assert (refused.code, "--durable" in refused.notes) == (2, True)
    async with busway.serve("tcp://127.0.0.1:0") as server:
        publisher = await shell.start(
            *("pub", "a", "--lines", "--durable", "--timeout", "300ms", "--url", server.addresses[0])
        )
        publisher.process.stdin.write(b"1\n")
        assert await publisher.line()
    publisher.process.stdin.write(b"2\n")
    await publisher.process.stdin.drain()
    ended = await publisher.end()
    assert ended.code == 3
    assert "not acknowledged within 0.3 s" in ended.notes
    assert "--timeout" in ended.notes


async def test_pub_stores_and_prints_positions(shell, bus, server):
    await bus.create_stream("orders", ["orders/**"])
    done = await shell.run("pub", "orders/eu", "hello", "--durable", "-f", "n=1")
    assert (done.code, done.lines, done.notes) == (0, [f"{server.guid}:0:orders"], "")
    lines = await shell.run("pub", "orders/eu", "--lines", "--durable", "--json", stdin=b"a\nb\n")
    assert [json.loads(line) for line in lines.lines] == [
        {
            "topic": "orders/eu",
            "position": f"{server.guid}:{offset}:orders",
            "safety": "written",
            "broker": server.guid,
            "stream": "orders",
            "offset": offset,
            "sequence": offset + 1,
        }
        for offset in (1, 2)
    ]
    assert len((await shell.run("pub", "orders/us", "x", "--durable", "--count", "3k")).lines) == 3000
    delayed = await shell.run("pub", "orders/it", "x", "--durable", "--delay", "1h", "--expires", "2h", "--count", 3)
    assert len(delayed.lines) == 3
    stream = await bus.stream("orders")
    assert [one.messages for one in await stream.topics()] == [3, 3000]
    async with bus.subscribe("orders/*", since="all") as subscription:
        got = {(await subscription.recv(timeout=60)).topic for _ in range(3003)}
    assert got == {"orders/eu", "orders/us"}  # the others are not due


async def test_sub_begins_with_what_is_stored(shell, bus, orders, server):
    done = await shell.run("sub", "orders/*", "--since", "all", "-n", 3, "--format", "{offset} {sequence} {payload}")
    assert (done.code, done.lines) == (0, ["0 1 1", "1 1 2", "2 2 \\xff3"])
    behind = await shell.run("sub", "orders/*", "--since", f"{server.guid}:1:orders", "-n", 1, "--json")
    assert json.loads(behind.out)["position"] == f"{server.guid}:2:orders"
    for since in ("1h", "2020-01-01", "2020-01-01T00:00Z"):
        assert (await shell.run("sub", "orders/us", "--since", since, "-n", 1)).lines == ["orders/us 2"]


async def test_replay_prints_a_stream(shell, orders, server):
    done = await shell.run("replay", "orders")
    assert (done.code, done.lines) == (0, ["orders/eu [venue=krk] 1", "orders/us 2", "orders/eu \\xff3"])
    assert done.notes == "3 messages\n"
    assert (await shell.run("replay", "orders", "--raw", "-q")).out == b"12\xff3"
    rows = [json.loads(line) for line in (await shell.run("replay", "orders", "--json", "-n", 2)).lines]
    assert [(one["offset"], one["sequence"], one["stream"]) for one in rows] == [(0, 1, "orders"), (1, 1, "orders")]
    position = f"{server.guid}:1:orders"
    for flags, expected in (
        (("--since", 1), ["1", "2"]),
        (("--since", 1, "--to", 2), ["1"]),
        (("--since", position), ["2"]),
        (("--since", f"{server.guid}:+1:orders"), ["1", "2"]),
        (("--to", position), ["0"]),
        (("--since", "1h", "--to", "2100-01-01"), ["0", "1", "2"]),
        (("--topic", "orders/us"), ["1"]),
        (("--where", "venue=k*"), ["0"]),
        (("--topic", "re:orders/.u"), ["0", "2"]),
        (("--since", 7), []),
    ):
        assert (await shell.run("replay", "orders", "--format", "{offset}", *flags)).lines == expected, flags


async def test_replay_prints_a_topic_of_all_streams(shell, bus, orders, server):
    await bus.update_stream("orders", topics=["orders/eu"])
    await bus.publish("orders/us", b"5", durable=True)
    done = await shell.run("replay", "orders/us", "--format", "{stream} {payload}")
    assert (done.code, sorted(done.lines)) == (0, ["default 5", "orders 2"])
    assert done.notes.splitlines() == ["orders/us in default orders", "2 messages"]
    one = await shell.run("replay", "**", "--since", f"{server.guid}:+2:orders", "--format", "{stream} {offset}", "-q")
    assert sorted(one.lines) == ["default 0", "default 1", "orders 2"]
    nothing = await shell.run("replay", "nothing/*")
    assert (nothing.lines, nothing.notes.splitlines()[-2:]) == (
        [],
        ["nothing is stored that matches 'nothing/*'", "0 messages"],
    )
    await bus.publish("alone", b"1", durable=True)
    assert (await shell.run("replay", "alone", "--format", "{payload}")).lines == ["1"]


async def test_replay_goes_on(shell, bus, orders):
    await bus.publish("elsewhere", b"", durable=True)
    for arguments in (("orders",), ("orders/*",), ("orders", "--since", "0"), ("orders", "--topic", "orders/*")):
        replay = await shell.start("replay", *arguments, "--follow", "--format", "{payload}", "-n", 4)
        first = [await replay.line() for _ in range(3)]
        assert first == [b"1\n", b"2\n", b"\\xff3\n"]
        await bus.publish("orders/new", b"live")  # is not stored
        await bus.publish("orders/new", b"4", durable=True)
        done = await replay.end()
        assert done.code == 0
        assert done.lines[-1] in {"4", "live"}
        await bus.remove_stream("orders")
        await bus.create_stream("orders", ["orders/**"])
        for payload in (b"1", b"2", b"\xff3"):
            await bus.publish("orders/eu", payload, durable=True)
    replay = await shell.start("replay", "orders", "--follow")
    assert "Ctrl-C ends" in await replay.ready()
    assert (await replay.end(signal.SIGINT)).code == 130


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
async def test_replay_saves(shell, bus, orders, tmp_path, suffix):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import ipc, parquet

    def load(file):
        return parquet.read_table(file) if suffix == "parquet" else ipc.open_file(pa.memory_map(str(file))).read_all()

    await bus.publish_many("orders/many", [b"%d" % number + b"." * 300 for number in range(9000)], durable=True)
    file = tmp_path / f"saved.{suffix}"
    done = await shell.run("replay", "orders", "-o", file)
    assert (done.code, done.out, done.notes) == (0, b"", "9003 messages\n")
    table = load(file)
    assert table.column("offset").to_pylist() == list(range(9003))
    assert table.column("topic").to_pylist()[:4] == ["orders/eu", "orders/us", "orders/eu", "orders/many"]
    assert set(table.column("stream").to_pylist()) == {"orders"}
    await shell.run("replay", "orders", "--out", file, "-n", 2)
    assert load(file).column("payload").to_pylist() == [b"1", b"2"]
    assert (await shell.run("replay", "orders", "--topic", "nothing", "--out", file)).notes == "0 messages\n"
    assert (load(file).num_rows, len(load(file).column_names)) == (0, 11)
    failed = await shell.run("replay", "orders", "--out", tmp_path / "nowhere" / f"x.{suffix}")
    assert failed.code == 1
    assert sorted(one.name for one in tmp_path.iterdir()) == ["data", f"saved.{suffix}"]


async def test_replay_shows_how_far_it_is_on_a_terminal_only(shell, bus, orders, tmp_path):
    await bus.publish_many("orders/many", [b"." * 300] * 9000, durable=True)
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "busway", "replay", "orders", "--raw"),
        stdout=asyncio.subprocess.PIPE,
        stderr=theirs,
        env=shell.environment | {"TERM": "xterm"},
    )
    os.close(theirs)
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    seen = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # its last writer is gone
            break
        if not chunk:
            break
        seen += chunk
    os.close(ours)
    assert len(out) == 4 + 9000 * 300
    assert b"orders" in seen
    assert b"9,003 messages" in seen


async def test_info_shows_streams(shell, orders):
    shown = await shell.run("info", "--no-connections")
    (line,) = [line for line in shown.lines if line.startswith("orders ")]
    assert line.split()[:5] == ["orders", "orders/**", "disk", "written", "for"]
    streams = json.loads((await shell.run("info", "--json")).out)["streams"]
    assert [(one["name"], one["next"], one["damage"]) for one in streams] == [("default", 1, 0), ("orders", 3, 0)]


async def test_channels_are_shown_with_their_lag(shell, bus, orders):
    async with bus.channel("orders", "billing", window=1) as channel:
        await channel.recv(timeout=60)
        for arguments in (("stream", "info", "orders"), ("info", "--no-connections")):
            lines = [line.split() for line in (await shell.run(*arguments)).lines]
            (head,) = [line for line in lines if "lag" in line]
            (line,) = [line for line in lines if "billing" in line]
            assert line[head.index("lag")] == "3"
            assert line[head.index("channel")] == "billing"


@pytest.fixture
async def spread(tmp_path):
    """Two nodes, with two messages at the first and one at the second."""
    async with (
        busway.serve("tcp://127.0.0.1:0", name="west", data=tmp_path / "west", cluster="shop") as west,
        busway.serve(
            "tcp://127.0.0.1:0", name="east", data=tmp_path / "east", cluster="shop", servers=list(west.addresses)
        ) as east,
        west.connect() as here,
        east.connect() as there,
    ):
        await until(lambda: west.stats()["links"] == east.stats()["links"] == 1)
        await here.create_stream("jobs", ["jobs/**"])
        await here.publish_many("jobs/1", [b"1", b"2"], durable=True)
        await there.publish("jobs/2", b"3", durable=True)
        yield west, east


async def test_streams_of_a_cluster_are_shown_and_replayed_whole(shell, spread, tmp_path):
    west, east = spread
    for server in spread:
        at = ("--url", server.addresses[0])
        listed = await shell.run("stream", "list", "--json", *at)
        figures = {one["name"]: one for one in map(json.loads, listed.lines)}
        assert figures["jobs"]["total"] == 3
        table = await shell.run("stream", "list", *at)
        assert next(line.split() for line in table.lines if line.startswith("jobs"))[-1] == "2", "nodes"
        shown = await shell.run("stream", "info", "jobs", *at)
        assert shown.code == 0
        rows = {words[0]: words for line in shown.out.decode().splitlines() if (words := line.split())}
        assert any(line.split() == ["total", "3"] for line in shown.lines)
        assert (rows["west"][2], rows["east"][2]) == ("2", "1")
        for what in ("jobs", "jobs/*"):
            done = await shell.run("replay", what, "--format", "{payload}", *at)
            assert (done.code, sorted(done.lines)) == (0, ["1", "2", "3"]), done.notes
            assert "3 messages" in done.notes
        done = await shell.run("replay", "jobs", "--since", "0", "--format", "{payload}", *at)
        assert done.lines == (["1", "2"] if server is west else ["3"]), "an offset is a place at one node"
        done = await shell.run(
            "replay", "jobs", "--to", busway.Position(west.guid, "jobs", 1), "--format", "{payload}", *at
        )
        assert sorted(done.lines) == ["1", "3"], done.notes
        file = tmp_path / f"{server.name}.parquet"
        done = await shell.run("replay", "jobs", "--out", file, *at)
        assert done.code == 0
        assert sorted(pyarrow.parquet.read_table(file)["payload"].to_pylist()) == [b"1", b"2", b"3"]
    done = await shell.run("replay", "jobs/2", "--format", "{payload}", "--url", west.addresses[0])
    assert done.lines == ["3"]
    await east.stop()
    await until(lambda: west.stats()["links"] == 0)
    for verb in (("stream", "list"), ("stream", "info", "jobs"), ("replay", "jobs")):
        done = await shell.run(*verb, "--url", west.addresses[0])
        assert done.code == 0
        assert "can't be reached now" in done.notes
        assert "east" in done.notes
