"""A client that starts before its server: it connects when the server appears, and fails at once where waiting can't help."""

import asyncio
import logging
import socket
import sys

import pytest

import busway
import busway.sync
from busway.client.connection.wait import is_curable, patience
from busway.errors import Code
from tests.support.net import PATIENCE, Certificates, until, within


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


@pytest.mark.parametrize("wait", [True, PATIENCE, "1m"])
async def test_it_connects_when_the_server_appears(tmp_path, caplog, wait) -> None:
    address = f"unix:{tmp_path / 'bus'}"
    bus = busway.connect(address, wait=wait, reconnect=[0.001])
    opening = asyncio.create_task(bus.open())
    await until(lambda: warnings(caplog))
    (told,) = warnings(caplog)
    assert told.startswith(f"no server answers: {address}: ")
    assert told.count(address) == 1
    assert told.endswith("; waiting for one")
    async with busway.serve(address):
        await within(opening)
        assert await bus.publish("a", b"", confirm=True) == 0
        await bus.close()
    assert len(warnings(caplog)) == 1, "not for each attempt"


async def test_the_blocking_face_waits_too(tmp_path, caplog) -> None:
    address = f"unix:{tmp_path / 'bus'}"

    def program() -> int:
        with busway.sync.connect(address, wait=True, reconnect=None) as bus:
            return bus.publish("a", b"", confirm=True)

    running = asyncio.create_task(asyncio.to_thread(program))
    await until(lambda: warnings(caplog))
    async with busway.serve(address):
        assert await within(running) == 0


async def test_without_it_the_first_failure_is_raised(tmp_path) -> None:
    with pytest.raises(busway.ConnectFailed):
        await busway.connect(f"unix:{tmp_path / 'bus'}")


async def test_the_time_to_wait_ends(tmp_path) -> None:
    with pytest.raises(busway.ConnectFailed, match=r"No such file.* \(waited 0.05 s\)"):
        await busway.connect(f"unix:{tmp_path / 'bus'}", wait=0.05)


async def test_one_that_is_closed_waits_no_more(tmp_path, caplog) -> None:
    bus = busway.connect(f"unix:{tmp_path / 'bus'}", wait=True, reconnect=[3600])
    opening = asyncio.create_task(bus.open())
    await until(lambda: warnings(caplog))
    await within(bus.close())
    with pytest.raises(busway.Closed):
        await within(opening)


async def test_what_waiting_cannot_cure_fails_at_once(certificates: Certificates) -> None:
    settings = busway.Settings(authenticate=lambda caller: caller.credentials == "right")
    tls = busway.TLS(cert=certificates.server, key=certificates.server_key)
    async with busway.serve("tcp://127.0.0.1:0", "tls://127.0.0.1:0", settings=settings, tls=tls) as server:
        plain, secure = server.addresses
        with pytest.raises(busway.Rejected, match="credentials were refused"):
            await within(busway.connect(plain, credentials="wrong", wait=True).open())
        for ca in (certificates.stranger_ca, certificates.ca + ".none"):
            with pytest.raises(busway.ConnectFailed):
                await within(busway.connect(secure, tls=busway.TLS(ca=ca), wait=True).open())
        gone = f"tcp://127.0.0.1:{free_port()}"
        with pytest.raises(busway.ConnectFailed, match="certificate"):
            await within(busway.connect(gone, secure, wait=True).open())


@pytest.mark.parametrize("wait", ["soon", -1, None, 0])
def test_lengths_that_are_none(wait) -> None:
    with pytest.raises((TypeError, ValueError), match="wait"):
        busway.connect(wait=wait)


def test_which_errors_may_pass() -> None:
    assert patience(False) == 0.0
    assert is_curable(busway.ConnectFailed("nobody listens"))
    assert is_curable(busway.Disconnected("the broker stops", code=Code.GOING_AWAY))
    assert not is_curable(busway.RemoteProtocolError("HTTP"))
    assert not is_curable(busway.Rejected("no", code=Code.VERSION))


async def test_a_command_that_waits(tmp_path) -> None:
    """As a user starts it: the client first."""
    address = f"unix:{tmp_path / 'bus'}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "busway", "sub", "a", "-n", "1", "--wait", "--url", address),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert b"waiting for one" in await within(process.stderr.readline())
        async with busway.serve(address) as server, server.connect() as bus:
            assert b"subscribed to a" in await within(process.stderr.readline())
            await bus.publish("a", b"hello")
            out, _ = await within(process.communicate())
            assert (process.returncode, out) == (0, b"a hello\n")
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
