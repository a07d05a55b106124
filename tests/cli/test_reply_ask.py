"""`busway reply --shared --ask`: the asked command ends when no requester waits for it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

import busway
from busway.cli.reply import _Ask
from busway.testing import FaultProxy
from tests.support.net import PATIENCE, until, within


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def child(file: Path) -> int:
    """The process that wrote its number there."""
    await until(lambda: file.exists() and file.read_text().endswith("\n"))
    return int(file.read_text())


async def test_the_command_ends_with_the_connection(shell, server, tmp_path):
    proxy = FaultProxy(server.addresses[0])
    async with proxy, server.connect() as bus:
        command = f"sh -c 'echo $$ > {tmp_path}/pid; exec sleep 600'; true"
        running = await shell.start("reply", "s", "--shared", "--ask", command, "--echo", BUSWAY_URL=proxy.address)
        await running.ready()
        asking = asyncio.ensure_future(bus.request("s", timeout=None, each=600))
        pid = await child(tmp_path / "pid")
        assert not ended(pid)
        proxy.cut()
        await until(lambda: ended(pid))
        with pytest.raises(busway.NoResponders):
            await within(asking)
        done = await running.end(signal.SIGINT)
        assert (done.code, "connection lost" in done.notes) == (130, True)
        assert "cancelled" not in done.notes, "it was not the time limit that ended it"


async def test_a_command_that_is_cancelled_while_it_starts_ends_too(bus, tmp_path, monkeypatch):
    start, started, go = asyncio.create_subprocess_shell, asyncio.Event(), asyncio.Event()

    async def slowly(*arguments, **keywords):
        process = await start(*arguments, **keywords)
        started.set()
        await go.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_shell", slowly)
    async with bus.subscribe("s") as subscription:
        await bus.publish("s")
        message = await subscription.recv(timeout=PATIENCE)
    asking = asyncio.ensure_future(_Ask(f"sh -c 'echo $$ > {tmp_path}/pid; exec sleep 600'; true")(message))
    await within(started.wait())
    pid = await child(tmp_path / "pid")
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(asking)
    go.set()
    await until(lambda: ended(pid))
