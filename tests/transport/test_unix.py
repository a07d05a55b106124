"""Unix sockets: a stale file is replaced, a live one is not, and nothing is left behind."""

import asyncio
import signal
import socket
import sys
from pathlib import Path

import pytest

import busway
from tests.support.net import within


async def talk(address: str) -> None:
    async with busway.connect(address) as bus:
        assert await bus.publish("t", b"", confirm=True) == 0


async def test_a_stale_socket_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    old = socket.socket(socket.AF_UNIX)
    old.bind(str(path))
    old.close()  # the file stays, nobody listens
    assert path.is_socket()
    async with busway.serve(f"unix:{path}") as server:
        await talk(server.addresses[0])


async def test_the_socket_of_a_killed_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    program = (
        "import busway, asyncio\n"
        "async def main():\n"
        f"    async with busway.serve('unix:{path}') as server:\n"
        "        print('up', flush=True)\n"
        "        await server.serve_forever()\n"
        "asyncio.run(main())\n"
    )
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    assert await within(child.stdout.readline()) == b"up\n"
    await talk(f"unix:{path}")
    child.send_signal(signal.SIGKILL)
    await within(child.wait())
    assert path.is_socket()
    async with busway.serve(f"unix:{path}") as server:
        await talk(server.addresses[0])


async def test_a_live_one_is_not_replaced(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'bus'}"
    async with busway.serve(address):
        with pytest.raises(busway.BusError, match="bus"):
            async with busway.serve(address):
                pass
        await talk(address)


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    path.write_text("precious")
    with pytest.raises(busway.BusError):
        async with busway.serve(f"unix:{path}"):
            pass
    assert path.read_text() == "precious"


async def test_the_file_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    async with busway.serve(f"unix:{path}"):
        assert path.is_socket()
    assert not path.exists()


async def test_a_server_that_replaced_it_keeps_its_file_when_the_old_one_stops(tmp_path: Path) -> None:
    """Stopping removes the file only if it is one's own still."""
    path = tmp_path / "bus"
    async with busway.serve(f"unix:{path}"):
        path.unlink()
        new = await busway.serve(f"unix:{path}").start()
    assert path.is_socket()
    await talk(f"unix:{path}")
    await new.stop()


async def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(busway.ConnectFailed, match="bus"):
        await busway.connect(f"unix:{tmp_path / 'bus'}", timeout=1)


async def test_a_path_that_is_too_long_or_missing_is_a_clear_error(tmp_path: Path) -> None:
    for path in (tmp_path / ("x" * 200), tmp_path / "no" / "folder"):
        with pytest.raises(busway.BusError):
            async with busway.serve(f"unix:{path}"):
                pass
