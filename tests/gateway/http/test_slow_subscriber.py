"""One of a thousand subscribers reads nothing: it costs limited memory, gets an error and is closed; no other misses a
message.
"""

import asyncio
import json
import resource
import socket

import aiohttp
import pytest

from tests.support import door as doors

CROWD = 999
MESSAGES = 10
BIG = 64 * 1024
COUNT = 512
"""So many big messages are far more than the buffers of the kernel hold."""
BOUND = 8 * 1024 * 1024
"""What may wait for a client: what counts as full, and what was taken at once before it was."""


@pytest.fixture
def files():
    """Room for both ends of all connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * CROWD
    if soft != resource.RLIM_INFINITY and soft < wanted:
        assert hard == resource.RLIM_INFINITY or hard >= wanted, f"ulimit -n must be {wanted} or more"
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def stuck(url):
    """A WebSocket whose client has subscribed twice, and then never reads."""
    host, port = url.removeprefix("http://").split(":")
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(made, (host, int(port)))
    await loop.sock_sendall(
        made,
        f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode(),
    )
    assert b"101" in await loop.sock_recv(made, 1024)
    for mq, channel in (("Big", "slow"), ("Q", "slow")):
        text = json.dumps({"cmd": "sub", "mq": mq, "channel": channel}).encode()
        await loop.sock_sendall(made, bytes((0x81, 0x80 | len(text))) + bytes(4) + text)
    return made


async def test_a_slow_one_among_a_thousand(files):
    async with (
        doors.opened(stall=2.0) as door,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        door.ws() as first,
    ):
        await first.done(cmd="create", mq="Q", channel="slow")
        await first.done(cmd="create", mq="Big", channel="slow")
        crowd = []
        for number in range(CROWD):
            one = doors.Ws(await session.ws_connect(door.url, max_msg_size=0), "flat")
            await one.send({"cmd": "create", "mq": "Q", "channel": f"c{number}"})
            await one.send({"cmd": "sub", "mq": "Q", "channel": f"c{number}"})
            crowd.append(one)
        for one in crowd:
            assert [(await one.recv(60))["status"] for _ in range(2)] == [200, 200]
        slow = await stuck(door.url)
        try:
            (http,) = door.server._open
            async with asyncio.timeout(60):
                while not all([(await door.bus.channel_info(mq, "slow")).consumers for mq in ("Q", "Big")]):
                    await asyncio.sleep(0.01)
                for _ in range(COUNT):
                    await door.bus.publish("Big", "x" * BIG, durable=True)
                while not (full := [one for one in http._sockets if one.full]):
                    await asyncio.sleep(0.01)
            (victim,) = full
            most = victim._transport.get_write_buffer_size()
            for number in range(MESSAGES):
                await first.done(cmd="pub", mq="Q", body=number)
                most = max(most, victim._transport.get_write_buffer_size())
            for one in crowd:
                assert [(await one.recv(60))["body"] for _ in range(MESSAGES)] == list(range(MESSAGES))
            assert most < BOUND
            async with asyncio.timeout(60):
                while http.figures()["slow"] == 0 or http.figures()["sockets"] != CROWD + 1:
                    await asyncio.sleep(0.01)
            # What it was not given is still there, for whoever comes.
            await first.done(cmd="sub", mq="Q", channel="slow")
            assert [(await first.recv(60))["body"] for _ in range(MESSAGES)] == list(range(MESSAGES))
            for one in crowd[::100]:
                await one.silent()
            kept = (await door.bus.channel_info("Big", "slow")).lag
            assert 0 < kept < COUNT
        finally:
            slow.close()
            for one in crowd:
                one.socket._response.close()
