"""`info`, `stream info`, `channel info` and `cluster` for people: important figures with units on 80 columns."""

import asyncio
import json
import os
import pty
import sys

import busway
from busway.cli.common.tables import elapsed, ordered
from tests.cli.conftest import PATIENCE
from tests.support.net import until


def words(done):
    return [" ".join(line.split()) for line in done.lines]


async def test_info_shows_what_is_not_zero(shell, bus):
    await bus.create_stream("orders", ["orders/**"])
    await bus.publish("orders/eu", b"1", durable=True)
    done = await shell.run("info")
    shown = words(done)
    assert shown[:2] == ["broker", "name shell"]
    assert shown.index("streams") < shown.index("connections") < shown.index("counters") < shown.index("limits")
    assert "frame 8.0m" in shown
    assert "None" not in done.out.decode()
    assert not any(line.startswith("slow consumers") for line in shown)
    assert "--all" in done.notes
    everything = await shell.run("info", "--all")
    assert "slow consumers 0" in words(everything)
    assert everything.notes == ""


async def test_stream_info_begins_with_what_is_stored(shell, bus):
    await bus.create_stream("orders", ["orders/**"], max_age="36h", max_bytes=64 * 1024 * 1024)
    await bus.publish("orders/eu", bytes(5000), durable=True)
    shown = words(await shell.run("stream", "info", "orders"))
    assert shown[:3] == ["name orders", "topics orders/**", "messages 1"]
    assert {"max age 36h", "max bytes 64.0m", "max count none"} <= set(shown)
    assert any(line.startswith("bytes ") and line.endswith("k") for line in shown)
    assert not any(line.startswith(("damage", "held since", "mirrored")) for line in shown)
    assert "held since none" in words(await shell.run("stream", "info", "orders", "--all"))
    assert json.loads((await shell.run("stream", "info", "orders", "--json")).out)["held_since"] is None


async def test_channel_info_begins_with_how_far_it_is(shell, bus):
    await bus.create_stream("orders", ["orders/**"])
    await bus.create_channel("orders", "billing", lease=90)
    shown = words(await shell.run("channel", "info", "orders", "billing"))
    assert shown[:4] == ["name billing", "stream orders", "lag 0", "in flight 0"]
    assert "lease 90s" in shown
    assert "exclusive no" not in shown
    assert "exclusive no" in words(await shell.run("channel", "info", "orders", "billing", "--all"))


async def test_tables_of_a_cluster_fit_on_a_screen(shell):
    async with (
        busway.serve("tcp://127.0.0.1:0", name="warehouse-1", cluster="shop") as west,
        busway.serve("tcp://127.0.0.1:0", name="warehouse-2", cluster="shop", servers=list(west.addresses)) as east,
        west.connect() as bus,
        bus.subscribe("t"),
        east.connect() as there,
    ):
        await until(lambda: west.stats()["links"] == east.stats()["links"] == 1)
        await there.publish("t", bytes(100_000), confirm=True)
        lines = (await on_a_screen(shell, "cluster", "--url", west.addresses[0])).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert sum("warehouse-2" in line for line in lines) == 2  # a node, and the link to it
    (node,) = [line for line in lines if east.guid[:8] in line]
    assert east.addresses[0] in node


async def on_a_screen(shell, *arguments):
    """What a command prints on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "busway", *arguments),
        stdout=theirs,
        stderr=asyncio.subprocess.PIPE,
        env=shell.environment | {"TERM": "dumb", "COLUMNS": "80"},
    )
    os.close(theirs)
    reading = asyncio.create_task(asyncio.to_thread(_all, ours))
    async with asyncio.timeout(PATIENCE):
        await process.communicate()
        shown = await reading
    os.close(ours)
    return shown.decode()


def _all(terminal):
    read = b""
    while True:
        try:
            read += os.read(terminal, 4096)
        except OSError:  # the command has ended
            return read


def test_figures_in_the_order_of_interest():
    figures = {"once": 900.0, "damage": 0, "bytes": 2048, "lease": 0, "note": "", "paused": False, "name": "x"}
    assert ordered(figures, ("name", "bytes", "lease")) == {
        "name": "x",
        "bytes": "2.0k",
        "lease": "none",
        "once": "15m",
    }
    assert ordered(figures, everything=True)["paused"] == "no"
    assert ordered(figures, everything=True)["note"] == "none"


def test_lengths_of_time_have_two_units():
    assert [elapsed(one) for one in (0, 59, 3601, 90061, -1)] == ["0s", "59s", "1h 1s", "1d 1h", "0s"]
