"""`busway reply --shared --ask` and `busway req --all --each`: several processes that serve one topic."""

import asyncio
import json
import signal

import pytest

import busway


async def provider(shell, name, *arguments):
    running = await shell.start("reply", "where", "--shared", "--name", name, *arguments)
    assert "serving where" in await running.ready()
    return running


async def test_the_ones_that_share_a_topic_are_asked_by_their_command(shell, bus, tmp_path):
    """As in the help: each has a list of what is its own."""
    for name, own in (("north", "a\nb\n"), ("south", "b\nc\n")):
        (tmp_path / name).write_text(own)
        await provider(shell, name, "--ask", f'grep -qx "$(cat)" {tmp_path / name}', "--body", name)
    for device, owners in (("a", ["north"]), ("b", ["north", "south"]), ("c", ["south"])):
        done = await shell.run("req", "where", device, "--each", "20s", "--timeout", "20s")
        assert done.code == 0, done.notes
        assert done.lines[0] in owners
        done = await shell.run("req", "where", device, "--all", "--each", "20s", "--timeout", "20s")
        assert (done.code, sorted(done.lines)) == (0, [f"{name}: {name}" for name in owners])
    for flags in ((), ("--all",)):
        nobody = await shell.run("req", "where", "d", *flags)
        assert (nobody.code, nobody.out) == (4, b"")


async def test_the_command_that_asks_sees_topic_and_payload(shell, bus, tmp_path):
    await provider(shell, "one", "--ask", f'echo "$BUSWAY_TOPIC $(cat)" > {tmp_path}/asked', "--echo")
    assert (await bus.request("where", "hello", timeout=60, each=20)).text == "hello"
    assert (tmp_path / "asked").read_text() == "where hello\n"


async def test_all_replies_and_failures_are_told(shell, bus):
    async with (
        bus.serve("s", lambda _: b"yes\n", shared=True),
        bus.serve("t", lambda _: b"\xff", shared=True),
    ):
        failing = await shell.start("reply", "s", "--shared", "--name", "bad", "--exec", "echo oops >&2; exit 3")
        await failing.ready()
        done = await shell.run("req", "s", "--all")
        assert (done.code, done.lines) == (1, ["test: yes"])
        assert "bad: exit status 3: oops" in done.notes
        done = await shell.run("req", "s", "--all", "--json")
        assert done.code == 1
        good, bad = sorted(map(json.loads, done.lines), key=lambda one: "error" in one)
        assert (good["payload"], good["sender"]) == ("yes\n", "test")
        assert (bad["sender"], bad["error"]) == ("bad", "exit status 3: oops")
        assert (await shell.run("req", "t", "--all", "--raw")).out == b"\xff"
        # One reply is asked of the next one if the first fails.
        assert [(await shell.run("req", "s")).lines for _ in range(3)] == [["yes"]] * 3


async def test_each_is_the_time_for_one(shell):
    patient = busway.Settings(provider_timeout=600)
    async with (
        busway.serve("tcp://127.0.0.1:0", settings=patient) as server,
        server.connect(name="silent", drain=0) as silent,
        server.connect() as bus,
        silent.serve("s", shared=True) as taken,
    ):
        flags = ("--timeout", "600s", "--url", server.addresses[0])
        asking = asyncio.ensure_future(shell.run("req", "s", "--each", "500ms", *flags))
        await taken.recv(timeout=60)
        async with bus.serve("s", lambda _: "next", shared=True):
            assert (await asking).lines == ["next"]
        done = await shell.run("req", "s", "--all", "--each", "100ms", *flags)
        assert (done.code, done.out) == (1, b"")
        assert "silent: " in done.notes


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("reply", "x", "--echo", "--ask", "true"), "--shared"),
        (("req", "x", "--each", "soon"), "10s"),
        (("req", "x", "--all", "--raw", "--json"), "exclude each other"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
async def test_flags_that_cannot_be(shell, arguments, text):
    done = await shell.run(*arguments)
    assert (done.code, done.out) == (2, b""), done.notes
    assert text in done.notes


async def test_shared_and_alone_do_not_mix(shell, bus):
    async with bus.serve("where", lambda _: b""):
        done = await shell.run("reply", "where", "--shared", "--echo")
        assert (done.code, done.out) == (5, b"")
    await provider(shell, "one", "--echo")
    assert (await shell.run("reply", "where", "--echo")).code == 5
    with pytest.raises(busway.ServiceTaken):
        await bus.serve("where", lambda _: b"")


async def test_an_interrupted_ask_is_no_yes(shell, bus, tmp_path):
    service = await provider(shell, "one", "--ask", f"touch {tmp_path}/asked; sleep 600", "--echo")
    asking = asyncio.ensure_future(bus.request("where", timeout=None, each=600))
    async with asyncio.timeout(60):
        while not (tmp_path / "asked").exists():
            await asyncio.sleep(0.001)
    assert (await service.end(signal.SIGINT)).code == 130
    async with asyncio.timeout(60):
        with pytest.raises(busway.NoResponders):
            await asking


async def test_sub_listens(shell, bus):
    sub = await shell.start("sub", "**", "--listen", "--count", 2)
    await sub.ready()
    async with bus.serve("where", lambda _: b"here", shared=True), bus.subscribe("jobs", group="g"):
        await bus.request("where", b"?")
        await bus.push("jobs", b"1", fields={"n": 1})
    done = await sub.end()
    assert (done.code, done.lines) == (0, ["where <request> ?", "jobs <push> [n=1] 1"])
