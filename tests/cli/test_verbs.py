"""Each verb: its output on stdout and stderr, and its exit code."""

import asyncio
import contextlib
import json
import signal

import pytest

import busway
from busway.cli.common.advice import advice


async def test_pub_and_sub(shell, bus):
    sub = await shell.start("sub", "price/**", "--count", 3)
    assert "subscribed to price/**" in await sub.ready()
    assert (await shell.run("pub", "price/eth", "1")).code == 0
    assert (await shell.run("pub", "price/eth", "-", stdin=b"2\n")).code == 0
    await bus.publish("price/\x7f".replace("\x7f", "btc"), b"\xff\x00")
    done = await sub.end()
    assert (done.code, done.lines) == (0, ["price/eth 1", "price/eth 2", "price/btc \\xff\\x00"])


async def test_pub_from_everywhere(shell, bus, tmp_path):
    (tmp_path / "body").write_bytes(b"\x00file\n")
    async with bus.subscribe("t") as subscription:
        for arguments, stdin in [
            (("pub", "t"), b"ignored"),
            (("pub", "t", "--file", tmp_path / "body"), b""),
            (("pub", "t", "--lines"), b"one\r\n\ntwo\nlast"),
            (("pub", "t", "--lines", "--file", tmp_path / "body"), b""),
            (("pub", "t", "x", "--count", "2"), b""),
        ]:
            done = await shell.run(*arguments, stdin=stdin)
            assert (done.code, done.out, done.notes) == (0, b"", "")
        await bus.flush()
        payloads = [message.payload for message in await subscription.take()]
    assert payloads == [b"", b"\x00file\n", b"one", b"", b"two", b"last", b"\x00file", b"x", b"x"]


async def test_pub_tells_when_asked(shell, bus):
    async with bus.subscribe("t"):
        assert (await shell.run("pub", "t", "x", "--confirm", "--count", 2)).lines == ["1", "1"]
        assert (await shell.run("pub", "u", "x", "--confirm")).lines == ["0"]
        assert json.loads((await shell.run("pub", "t", "x", "--confirm", "--json")).out) == {
            "topic": "t",
            "receivers": 1,
        }
        assert json.loads((await shell.run("pub", "t", "x", "--count", "10k", "--json")).out)["messages"] == 10_000
        some = json.loads((await shell.run("pub", "t", "x", "--rate", 100, "--for", "50ms", "--json")).out)
        assert 1 <= some["messages"] <= 6


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("pub", "a//b", "x"), 2, "empty segment"),
        (("pub", "$bus/x", "x"), 5, "belongs to the broker"),
        (("sub", "re:["), 2, "regex parse error"),
        (("req", "nobody"), 4, "busway reply"),
        (("push", "nobody"), 4, "busway sub"),
        (("req", "a/*"), 2, "wildcards"),
        (("sub", "x", "--count", "1", "--for", "10ms"), 3, "only 0 of 1"),
        (("reply", "x", "--echo", "--count", "1", "--for", "10ms"), 3, "only 0 of 1"),
        (("info", "--url", "tcp://127.0.0.1:1"), 1, "busway serve"),
        (("pub", "x", "--file", "/no/such/file"), 1, "No such file"),
        (("pub",), 2, "TOPIC"),
        (("sub", "x", "--raw", "--json"), 2, "exclude each other"),
        (("sub", "x", "--format", "{nope}"), 2, "{topic}"),
        (("sub", "x", "--for", "soon"), 2, "10s"),
        (("sub", "x", "--policy", "panic"), 2, "drop_oldest"),
        (("reply", "x"), 2, "--echo"),
        (("pub", "x", "body", "--lines"), 2, "--lines"),
        (("pub", "x", "body", "--file", "f"), 2, "--file"),
        (("serve", "--tls", "127.0.0.1:0"), 2, "--cert"),
        (("bench", "--size", "0"), 2, "--size"),
        (("sub", "x", "--count", "0"), 2, "1 or more"),
        (("sub", "x", "--count", "0.5"), 2, "1 or more"),
        (("reply", "x", "--echo", "--count", "0"), 2, "1 or more"),
        (("pub", "x", "--count", "0.5"), 2, "1 or more"),
        (("push", "x", "--count", "0"), 2, "1 or more"),
        (("bench", "--count", "1.5"), 2, "1 or more"),
        (("bench", "--requests", "0"), 2, "1 or more"),
        (("info", "--key", "key.pem"), 2, "--cert"),
        (("sub", "x", "--ca", "ca.pem", "--key", "key.pem"), 2, "--cert"),
        (("info", "--url", "http://x"), 2, "tcp://HOST:PORT"),
        (("info", "--url", "tcp://127.0.0.1:99999"), 2, "99999"),
        (("doctor", "--url", "amqp://x:1"), 2, "tcp://HOST:PORT"),
        (("bench", "--url", "http://x"), 2, "tcp://HOST:PORT"),
        (("bench", "--url", "tcp://127.0.0.1:1", "throughput"), 1, "busway serve"),
        (("nonsense",), 2, "nonsense"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
async def test_what_goes_wrong(shell, arguments, code, text):
    done = await shell.run(*arguments)
    assert (done.code, done.out) == (code, b""), done.notes
    assert text in done.notes
    assert "Traceback" not in done.notes
    if code in (1, 4, 5):
        assert len([line for line in done.notes.splitlines() if line.startswith("busway: ")]) == 1


async def test_forms_of_sub(shell, bus):
    forms = [("--raw",), ("--json",), ("--format", "{number}:{payload}"), ()]
    running = [await shell.start("sub", "a/*", "--count", 2, *form) for form in forms]
    for one in running:
        await one.ready()
    await bus.publish("a/b", "x\n")
    await bus.publish("a/c", b"\xff")
    raw, objects, formatted, plain = [await one.end() for one in running]
    assert [done.code for done in (raw, objects, formatted, plain)] == [0] * 4
    assert raw.out == b"x\n\xff"
    assert formatted.lines == ["1:x", "2:\\xff"]
    assert plain.lines == ["a/b x", "a/c \\xff"]
    one, two = map(json.loads, objects.lines)
    assert (one["topic"], one["payload"], one["kind"], one["sender"]) == ("a/b", "x\n", "publish", "test")
    assert (two["topic"], two["payload_base64"]) == ("a/c", "/w==")


async def test_quiet(shell, bus):
    sub = await shell.start("sub", "x", "--quiet", "--count", 1)
    while not await bus.publish("x", confirm=True):
        await asyncio.sleep(0)
    assert (await sub.end()).notes == ""


async def test_overlapping_patterns_print_once(shell, bus):
    sub = await shell.start("sub", "a/b", "a/*", "**", "--count", 3)
    await sub.ready()
    for number in range(3):
        await bus.publish("a/b", str(number))
    assert sorted((await sub.end()).lines) == ["a/b 0", "a/b 1", "a/b 2"]


async def test_sub_is_interrupted(shell, bus):
    sub = await shell.start("sub", "x")
    await sub.ready()
    await bus.publish("x", "1")
    assert await sub.line() == b"x 1\n"
    done = await sub.end(signal.SIGINT)
    assert (done.code, done.out) == (130, b"")
    assert "Traceback" not in done.notes


async def test_a_reader_that_leaves_is_no_error(shell, bus):
    sub = await shell.start("sub", "x")
    await sub.ready()
    sub.process._transport.get_pipe_transport(1).close()
    while sub.process.returncode is None:
        await bus.publish("x", b"y" * 1000)
        await bus.flush()
    done = await sub.end()
    assert done.code == 0
    assert "Broken" not in done.notes


async def test_sub_tells_what_it_missed(shell, bus):
    sub = await shell.start("sub", "x", "--policy", "drop_oldest", "--for", "60s")
    await sub.ready()
    sub.process.send_signal(signal.SIGSTOP)
    stuck = b"y" * 1_000_000
    while not (await bus.info())["stats"]["messages_dropped"]:
        await bus.publish("x", stuck)
    sub.process.send_signal(signal.SIGCONT)

    async def read():
        while await sub.process.stdout.read(1 << 20):
            pass

    async def notes():
        while b"missed" not in (line := await sub.process.stderr.readline()):
            assert line
        return line

    reading = asyncio.ensure_future(read())
    async with asyncio.timeout(60):
        assert b"message" in await notes()
    sub.process.kill()
    await reading


async def printed(bus):
    await bus.publish("x", "again")


async def answered(bus):
    assert (await bus.request("x", "again")).payload == b"again"


async def listed(bus):
    assert [message.payload for message in await bus.kept()] == [b"up"]


@pytest.mark.parametrize(
    ("words", "works", "lines"),
    [
        (("sub", "x", "--count", 1), printed, ["x again"]),
        (("reply", "x", "--echo", "--count", 1), answered, []),
        (("post", "x", "up"), listed, []),
    ],
    ids=["sub", "reply", "post"],
)
async def test_a_command_comes_back_with_its_server(shell, tmp_path, words, works, lines):
    address = f"unix:{tmp_path}/bus"
    async with busway.serve(address) as server:
        running = await shell.start(*words, "--url", address)
        await running.ready()
        await server.stop()
    async with busway.serve(address) as server, server.connect() as bus:
        assert "lost" in await running.ready()
        assert "connected again" in await running.ready()
        await works(bus)
        done = await running.end(signal.SIGTERM if words[0] == "post" else None)
    assert (done.code, done.lines) == (0, lines)


async def test_push(shell, bus):
    async with bus.subscribe("jobs", group="workers") as jobs:
        done = await shell.run("push", "jobs", "--lines", "--json", stdin=b"a\nb\n")
        assert (done.code, json.loads(done.out)) == (0, {"topic": "jobs", "taken": 2})
        assert [message.payload for message in await jobs.take()] == [b"a", b"b"]


async def test_req(shell, bus):
    async with bus.serve("sum", lambda message: sum(message.json())):
        assert (await shell.run("req", "sum", "[1, 2]")).out == b"3\n"
        assert (await shell.run("req", "sum", "-", "--raw", stdin=b"[4]")).out == b"4"
        assert json.loads((await shell.run("req", "sum", "[1]", "--json")).out)["payload"] == "1"
        failed = await shell.run("req", "sum", "?")
        assert failed.code == 1
        assert failed.notes.startswith("busway: ")
    async with bus.serve("slow"):
        late = await shell.run("req", "slow", "--timeout", "50ms")
        assert (late.code, "--timeout" in late.notes) == (3, True)


async def test_reply(shell, bus):
    for arguments, expected in [
        (("--echo",), b"hello"),
        (("--body", "pong"), b"pong"),
        (("--exec", "tr a-z A-Z; echo $BUSWAY_TOPIC"), b"HELLOtopic\n"),
    ]:
        service = await shell.start("reply", "topic", *arguments, "--count", 1, "--json")
        assert "serving topic" in await service.ready()
        assert (await bus.request("topic", "hello")).payload == expected
        done = await service.end()
        assert (done.code, json.loads(done.out)["payload"]) == (0, "hello")


async def test_reply_of_a_command_that_fails(shell, bus):
    service = await shell.start("reply", "topic", "--exec", "echo first >&2; echo oops >&2; exit 3", "--json")
    await service.ready()
    with pytest.raises(busway.HandlerError, match="exit status 3: oops"):
        await bus.request("topic")
    assert "exit status 3" in json.loads(await service.line())["error"]
    taken = await shell.run("reply", "topic", "--echo")
    assert (taken.code, taken.out) == (5, b"")
    assert (await service.end(signal.SIGINT)).code == 130


async def test_reply_whose_topic_is_taken_meanwhile(shell, tmp_path):
    """It asks for some heartbeats, in case that it was its own old connection."""
    address = f"unix:{tmp_path}/bus"
    quick = busway.Settings(heartbeat=0.5)
    second = busway.serve("tcp://127.0.0.1:0", settings=quick)
    async with second as server, server.connect() as bus, bus.serve("topic", lambda _message: b"taken"):
        async with busway.serve(address, settings=quick) as first:
            service = await shell.start("reply", "topic", "--echo", "--url", address, "--url", server.addresses[0])
            await service.ready()
            await first.stop()
        done = await service.end()
    assert done.code == 5
    assert "connection lost" in done.notes
    assert len([line for line in done.notes.splitlines() if line.startswith("busway: ")]) == 1
    assert "Traceback" not in done.notes


async def test_info_says_what_it_left_out(shell, server):
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(1002):
            await stack.enter_async_context(server.connect())
        done = await shell.run("info", "--json")
        told = json.loads(done.out)
        assert (len(told["connections"]), told["connections_left_out"]) == (1000, 3)
        assert "3 more connections are not listed" in done.notes
        assert "3 more connections are not listed" in (await shell.run("info")).notes
        few = await shell.run("info", "--no-connections", "--json")
        assert "connections_left_out" not in json.loads(few.out)
        assert few.notes == ""


def test_advice_names_only_flags_that_are_there():
    late = busway.Timeout("late")
    assert "--timeout" in advice(late, timed=True)
    assert advice(late) == ""


async def test_info(shell, bus):
    done = await shell.run("info", "--json")
    told = json.loads(done.out)
    assert (done.code, told["name"], len(told["connections"])) == (0, "shell", 2)
    assert "connections" not in json.loads((await shell.run("info", "--json", "--no-connections")).out)
    text = (await shell.run("info")).out.decode()
    for word in ("shell", "outbox", "messages received", "memory", "test"):
        assert word in text


async def test_doctor(shell, server):
    done = await shell.run("doctor", "--json")
    found = {one["check"]: one["state"] for one in map(json.loads, done.lines)}
    assert done.code == 0, done.out
    assert {
        "python",
        "engine",
        "loop",
        "nofile",
        "reach",
        "handshake",
        "round trip",
        "clock",
        "limits",
        "message",
    } <= set(found)
    assert "fail" not in found.values()
    bad = await shell.run("doctor", "--url", "tcp://127.0.0.1:1", "--url", server.addresses[0])
    assert bad.code == 1
    assert "fail reach" in bad.out.decode()
    assert "ok   handshake" in bad.out.decode()
    assert "1 check failed" in bad.notes


async def test_doctor_knows_what_is_no_bus(shell, tmp_path):
    (tmp_path / "file").write_text("")
    done = await shell.run("doctor", "--url", f"unix:{tmp_path}/file")
    assert done.code == 1
    assert "is not a socket" in done.out.decode()
    other = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with other:
        port = other.sockets[0].getsockname()[1]
        done = await shell.run("doctor", "--url", f"tcp://127.0.0.1:{port}", "--connect-timeout", "2s")
    assert done.code == 1
    assert "fail talk" in done.out.decode()


async def test_bench(shell):
    done = await shell.run("bench", "--count", "2k", "--requests", "200", "--subscribers", 2, "--repeat", 1, "--json")
    assert done.code == 0, done.notes
    results = {one["what"]: one for one in json.loads(done.out)["results"]}
    assert set(results) == {"throughput", "stream", "fanout", "group", "request", "requests"}
    assert all(one["rate"] > 0 for one in results.values())
    assert results["request"]["p50"] <= results["request"]["p99"]


async def test_bench_of_a_given_server(shell):
    done = await shell.run("bench", "throughput", "--count", "1k", "--repeat", 1, "--url", shell.url)
    assert done.code == 0, done.notes
    assert "throughput" in done.out.decode()


async def test_flags_from_the_environment(shell, bus):
    sub = await shell.start("sub", "x", BUSWAY_SUB_COUNT="1", BUSWAY_SUB_FORMAT="<{payload}>", BUSWAY_NAME="watcher")
    await sub.ready()
    assert "watcher" in [one["name"] for one in (await bus.info())["connections"]]
    await bus.publish("x", "y")
    assert (await sub.end()).lines == ["<y>"]


VERBS = "serve pub sub push req reply pin unpin kept info bench doctor"


@pytest.mark.parametrize("verb", VERBS.split())
async def test_help(shell, verb):
    done = await shell.run(verb, "--help")
    assert done.code == 0
    assert f"busway {verb}" in done.out.decode()
    assert "--json" in done.out.decode()


async def test_version_and_completion(shell):
    assert (await shell.run("--version")).out.decode() == f"busway {busway.__version__}\n"
    completed = await shell.run(
        _BUSWAY_COMPLETE="complete_bash", COMP_WORDS="busway s", COMP_CWORD="1", _TYPER_COMPLETE_ARGS="busway s"
    )
    assert {"serve", "sub"} <= set(completed.out.decode().split())


async def test_input_that_stays_silent(shell, bus):
    async with bus.subscribe("t") as subscription:
        streaming = await shell.start("pub", "t", "--lines", "--for", "1s")
        streaming.process.stdin.write(b"one\n")
        assert (await subscription.recv(timeout=60)).payload == b"one"  # it doesn't wait for more
        assert (await streaming.process.wait()) == 0

        waiting = await shell.start("pub", "t", "-")
        while (await bus.info())["stats"]["connections"] < 2:
            await asyncio.sleep(0)
        assert (await waiting.end(signal.SIGINT)).code == 130
        assert subscription.pending == 0


async def test_a_topic_that_looks_like_an_expression_is_one_of_several_patterns(shell, bus):
    sub = await shell.start("sub", "re:x.*", "**", "--count", 2)
    await sub.ready()
    await bus.publish("re:x", b"1")
    await bus.publish("xy", b"2")
    done = await sub.end()
    assert (done.code, sorted(done.lines)) == (0, ["re:x 1", "xy 2"])
