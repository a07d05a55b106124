"""Exit codes of verbs when the cause is outside: a closed pipe, a failing command, wrong certificates."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

import busway
from tests.cli.conftest import PATIENCE
from tests.support.net import until


@pytest.mark.parametrize(
    ("reply", "flags", "shown"),
    [
        (b"pong", (), b"pong\n"),
        (b"pong\n", (), b"pong\n"),
        (b"a\n\n", (), b"a\n\n"),
        (b"", (), b"\n"),
        (b"pong\n", ("--raw",), b"pong\n"),
        (b"pong", ("--raw",), b"pong"),
    ],
)
async def test_req_ends_a_reply_with_one_newline(shell, bus, reply, flags, shown):
    async with bus.serve("ping", lambda message: reply):
        assert (await shell.run("req", "ping", *flags)).out == shown


async def test_a_reader_that_goes_ends_sub_quietly_and_what_was_missed_is_told(shell, bus):
    reading, writing = os.pipe()
    sub = await shell.start("sub", "t", "--policy", "drop_new", stdout=writing)
    os.close(writing)
    await sub.ready()
    async with asyncio.timeout(PATIENCE):
        while not (await bus.info())["stats"]["messages_dropped"]:  # nobody reads, so it is dropped in the end
            await bus.publish_many("t", [bytes(64 * 1024)] * 16)
    os.close(reading)
    await bus.publish("t", b"written to nobody")
    done = await sub.end()
    assert done.code == 0
    first, *notes = done.notes.splitlines()
    assert first.startswith("subscribed to t")
    assert notes
    assert all(note.startswith("missed ") for note in notes), notes


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def begun(path: Path) -> int:
    """The process that the command has started."""
    await until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_reply_ends_all_that_its_command_started(shell, bus, tmp_path, how):
    note = tmp_path / "pid"
    service = await shell.start("reply", "slow", "--exec", f"sleep 60 & echo $! > {note}; wait")
    await service.ready()
    asking = asyncio.ensure_future(bus.request("slow", timeout=PATIENCE))
    child = await begun(note)
    done = await service.end(how)
    assert done.code == (130 if how == signal.SIGINT else 0)
    await until(lambda: not alive(child))
    with pytest.raises(busway.HandlerError, match="signal 15"):
        await asking


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
async def test_a_command_that_ignores_the_end_is_killed_with_all_that_it_started(shell, bus, tmp_path):
    note = tmp_path / "pid"
    command = f"trap '' TERM; sleep 60 & echo $! > {note}; wait"
    service = await shell.start("reply", "slow", "--for", "1s", "--exec", command)
    await service.ready()
    asking = asyncio.ensure_future(bus.request("slow", timeout=PATIENCE))
    child = await begun(note)
    done = await service.end()  # after its second and the time to drain
    assert done.code == 0
    await until(lambda: not alive(child))
    with pytest.raises(busway.ServiceGone):
        await asking


async def test_an_error_of_tls_names_the_flag_that_mends_it(shell, certificates):
    here = busway.TLS(cert=certificates.server, key=certificates.server_key)
    both = busway.TLS(cert=certificates.server, key=certificates.server_key, ca=certificates.ca)
    async with (
        busway.serve("tls://127.0.0.1:0", tls=here) as server,
        busway.serve("tls://127.0.0.1:0", tls=both) as mutual,
    ):
        one, two, plain = server.addresses[0], mutual.addresses[0], shell.url
        ca = ("--ca", certificates.ca)
        for arguments, said, hint in [
            ((one,), "not accepted", "--ca"),
            ((one, "--ca", certificates.stranger_ca), "not accepted", "--ca"),
            ((one, *ca, "--server-name", "other.example"), "Hostname mismatch", "--server-name"),
            ((two, *ca), ("closed", "reset"), "--cert and --key"),
            ((two, *ca, "--cert", certificates.client), "no certificate with its key", "check --cert and --key"),
            (
                (two, *ca, "--cert", certificates.client, "--key", certificates.server_key),
                "mismatch",
                "--cert and --key",
            ),
            ((two, *ca, "--cert", certificates.client, "--key", "/no/key"), "/no/key", "check --key"),
            ((one, "--ca", "/no/ca"), "/no/ca", "check --ca"),
            ((one, "--ca", certificates.server_key), "no certificate of an authority", "check --ca"),
            ((plain.replace("tcp:", "tls:"), *ca), "wrong version", "tcp://"),
            ((one.replace("tls:", "tcp:"),), "closed", "tls://"),
        ]:
            done = await shell.run("info", "--url", *arguments)
            assert (done.code, done.out) == (1, b""), arguments
            assert any(one in done.notes for one in ([said] if isinstance(said, str) else said)), arguments
            assert hint in done.notes, (arguments, done.notes)
            assert "_ssl.c" not in done.notes
        done = await shell.run("info", "--url", one, *ca, "--server-name", "localhost", "--json")
        assert done.code == 0, done.notes


async def test_serve_names_the_file_that_is_wrong(shell, certificates):
    done = await shell.run(
        "serve", "--tls", "127.0.0.1:0", "--cert", certificates.server, "--key", certificates.client_key
    )
    assert done.code == 1
    assert "check --cert and --key" in done.notes
