"""The JSON door from start to stop: on one port, drained with its server; and its keys."""

import asyncio
import json
import sys

import aiohttp
import pytest

import busway
from busway.gateway.auth.signatures import signed
from tests.support import door as doors


async def test_it_is_told_where():
    async with busway.serve(http="127.0.0.1:0") as server:
        assert server.http is not None
        assert server.http.startswith("http://127.0.0.1:")
        with pytest.raises(busway.ListenFailed):
            async with busway.serve(http=server.http):
                pass
    assert server.http is None
    async with busway.serve() as server:
        assert server.http is None
    for wrong in ("127.0.0.1", "x:y", "a:99999", 7, ["x"]):
        with pytest.raises((ValueError, TypeError)):
            busway.serve(http=wrong)


async def test_without_aiohttp_it_says_so(monkeypatch):
    for name in [
        name for name in sys.modules if name.partition(".")[0] == "aiohttp" or name == "busway.gateway.http.door"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ImportError, match="pip install 'aiohttp"):
        busway.serve(http="127.0.0.1:0")


async def test_a_stop_tells_everybody(door, form):
    async with door.ws(form) as ws, door.ws(form) as idle:
        await ws.done(cmd="create", mq="Q", channel="C")
        await ws.done(cmd="sub", mq="Q", channel="C")
        for number in range(100):
            await ws.send({"cmd": "pub", "mq": "Q", "body": number})
        poll = asyncio.ensure_future(door.http.get("/?cmd=take&mq=Q&channel=C&timeout=30"))
        got = [await ws.recv() for _ in range(150)]
        stopping = asyncio.ensure_future(door.server.stop())
        closed = await asyncio.wait_for(idle.socket.receive(), 10)
        assert (closed.type, closed.data, closed.extra) == (aiohttp.WSMsgType.CLOSE, 1001, "the broker stops")
        await stopping
        poll.cancel()
        assert got


PING = b'{"cmd":"ping","id":"7"}'
FRAME = bytes((0x81, 0x80 | len(PING))) + bytes(4) + PING


async def connected(door):
    host, port = door.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


def upgrade(door, path="/", connection="Upgrade", key="dGhlIHNhbXBsZSBub25jZQ=="):
    host = door.url.removeprefix("http://")
    return (
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: {connection}\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    ).encode()


async def pong(reader):
    _, size = await reader.readexactly(2)
    assert json.loads(await reader.readexactly(size))["id"] == "7"


async def test_a_connection_that_becomes_a_websocket_later(door):
    """Proxies reuse connections."""
    reader, writer = await connected(door)
    for _ in range(3):
        writer.write(f"GET /?cmd=ping HTTP/1.1\r\nHost: {door.url.removeprefix('http://')}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        lines = [line for line in head.splitlines() if line.lower().startswith(b"content-length")]
        await reader.readexactly(int(lines[0].split(b":")[1]))
    writer.write(upgrade(door))
    assert b"101" in await reader.readuntil(b"\r\n\r\n")
    for _ in range(3):
        writer.write(FRAME)
        await pong(reader)
    writer.close()


@pytest.mark.parametrize("path", ["/", "/any/path?x=1", "/healthz", "/events/a"])
@pytest.mark.parametrize("connection", ["Upgrade", "keep-alive, Upgrade", "upgrade,keep-alive"])
async def test_a_websocket_at_any_path_of_any_browser(door, path, connection):
    reader, writer = await connected(door)
    writer.write(upgrade(door, path, connection))
    assert b"101" in await reader.readuntil(b"\r\n\r\n")
    writer.write(FRAME)
    await pong(reader)
    writer.close()


async def test_frames_behind_the_request_are_read(door):
    """A client should wait for the answer; one that does not loses nothing."""
    reader, writer = await connected(door)
    writer.write(upgrade(door) + FRAME * 100)
    assert b"101" in await reader.readuntil(b"\r\n\r\n")
    for _ in range(100):
        await pong(reader)
    writer.close()


@pytest.mark.parametrize("wrong", [{"connection": "keep-alive"}, {"key": "short"}])
async def test_a_wrong_handshake_is_refused(door, wrong):
    reader, writer = await connected(door)
    writer.write(upgrade(door, **wrong))
    assert b"400 Bad Request" in await asyncio.wait_for(reader.read(), 60)
    writer.close()


async def test_more_clients_than_allowed_are_refused():
    async with doors.opened(clients=1) as door, door.ws() as ws:
        reader, writer = await connected(door)
        writer.write(upgrade(door))
        answer = await asyncio.wait_for(reader.read(), 60)
        assert b" 503 " in answer
        assert answer.endswith(b"the limit of 1 clients is reached")
        writer.close()
        assert (await door.http.get("/?cmd=ping"))[0] == 503
        for path in ("/healthz", "/readyz"):
            assert (await door.http.get(path))[0] == 200, path
        await ws.done(cmd="ping", id="still")


async def test_silent_clients_are_closed():
    async with doors.opened(idle=0.3) as door, door.ws() as ws:
        closed = await asyncio.wait_for(ws.socket.receive(), 10)
        assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1001)


async def test_pings_of_the_websocket(door):
    async with door.ws() as ws:
        await ws.socket.ping(b"there?")
        await ws.done(cmd="ping", id="p")


async def test_any_path_and_other_clients(door):
    import websockets

    url = door.url.replace("http", "ws")
    async with websockets.connect(url + "/some/path?x=1") as ws:
        await ws.send(json.dumps({"cmd": "ping", "id": "w"}))
        assert json.loads(await ws.recv())["id"] == "w"


async def test_its_pages(door):
    await door.http.get("/?cmd=create&mq=Q&channel=C")
    for path in ("/healthz", "/readyz", "/openapi.json", "/asyncapi.json", "/services"):
        status, found = await door.http.get(path)
        assert (status, bool(found)) == (200, True), path
    async with door.ws() as ws:
        await ws.done(cmd="pub", mq="Q", id="x", body="y")
        await ws.ask(cmd="pub", mq="No", id="x", body="y")
        async with door.session.get(door.url + "/metrics") as response:
            text = await response.text()
    for line in (
        'busway_http_requests_total{command="pub"} 2.0',
        'busway_http_requests_total{command="create"} 1.0',
        'busway_http_refused_total{status="404"} 1.0',
        "busway_http_websockets 1.0",
        "busway_up 1.0",
    ):
        assert line in text, text


async def test_events_are_messages(door):
    async with door.ws() as ws:
        await ws.done(cmd="create", mq="Q", channel="C")
        await ws.done(cmd="sub", mq="Q", channel="C")
        event = {"specversion": "1.0", "id": "e1", "source": "/s", "type": "t", "data": {"a": 1}}
        async with door.session.post(
            door.url + "/events/Q?durable=1", json=event, headers={"Content-Type": "application/cloudevents+json"}
        ) as response:
            assert response.status == 200, await response.text()
        got = await ws.recv()
        assert (got["body"], got["ce-type"]) == ({"a": 1}, "t")


KEYS = """
[[key]]
apiKey = "shop"
secretKey = "s3cret"
publish = ["orders/**"]
subscribe = ["orders/**"]
request = ["price"]

[[key]]
apiKey = "fresh"
secretKey = "s3cret"
publish = ["**"]
window = 60
"""


async def test_keys(tmp_path, form):
    (tmp_path / "keys.toml").write_text(KEYS)
    async with doors.opened(keys=tmp_path / "keys.toml") as door, door.ws(form) as ws:

        async def ask(key="shop", secret="s3cret", tamper=None, **message):
            made = signed(doors.formed(form, message), key, secret)
            await ws.socket.send_str(json.dumps(made | (tamper or {}), ensure_ascii=False))
            return doors.flat(await ws.raw())

        assert (await ws.ask(cmd="ping", id="p"))["status"] == 200
        refused = await ws.ask(cmd="create", mq="orders/1")
        assert (refused["status"], refused["body"]) == (403, "missing apiKey in request")
        assert (await ask(cmd="create", mq="orders/1", channel="C"))["status"] == 200
        assert (await ask(cmd="pub", mq="orders/1", body="zażółć"))["status"] == 200
        got = (await ask(cmd="take", mq="orders/1", channel="C"))["body"]
        assert not {"apiKey", "signature"} & doors.flat(got[0]).keys()
        assert (await ask(cmd="pub", mq="orders/1", body="x", secret="wrong"))["status"] == 403
        assert (await ask(cmd="pub", mq="orders/1", body="x", tamper={"body": "y"}))["status"] == 403
        assert (await ask(cmd="create", mq="other"))["body"] == "apiKey may not publish or serve other"
        price = {"method": "price"} if form == "flat" else {"url": "/price"}
        assert (await ask(**price))["status"] == 404
        secret = {"method": "secret"} if form == "flat" else {"url": "/secret"}
        assert (await ask(**secret))["status"] == 403
        import time

        once = signed(
            doors.formed(form, {"cmd": "pub", "mq": "orders/1", "body": 1, "timestamp": time.time()}), "fresh", "s3cret"
        )
        for status in (200, 403):
            await ws.socket.send_str(json.dumps(once))
            assert doors.flat(await ws.raw())["status"] == status
        assert (await door.http.get("/services"))[0] == 403
        assert (await door.http.get("/healthz"))[0] == 200
        async with door.session.post(
            door.url + "/events/orders/1", json={}, headers={"Content-Type": "application/cloudevents+json"}
        ) as response:
            assert response.status in {400, 403}
        async with door.session.get(door.url + "/metrics") as response:
            assert "busway_http_forbidden_total" in await response.text()


async def test_typed_messages_are_described(door):
    class Greeting(busway.Protocol, prefix="test/greeting"):
        name: str

    _, found = await door.http.get("/asyncapi.json")
    assert found["channels"]["protocol.Greeting"]["address"].startswith("test/greeting")


async def test_streams_end_with_the_server(door):
    """Those of `sub` and of events alike, as a whole answer, and nobody waits for a timer."""
    await door.http.get("/?cmd=create&mq=Q&channel=C")
    async with (
        door.session.get(door.url + "/?cmd=sub&mq=Q&channel=C") as lines,
        door.session.get(door.url + "/events/**") as events,
    ):
        assert b"OK, SUB" in await lines.content.readline()
        assert await events.content.readline() == b": ready\n"
        stopping = asyncio.ensure_future(door.server.stop())
        await asyncio.wait_for(lines.read(), 10)
        assert b"event: error" in await asyncio.wait_for(events.read(), 10)
        await stopping


async def test_a_head_of_a_stream_ends(door):
    await door.http.get("/?cmd=create&mq=Q&channel=C")
    async with door.session.head(door.url + "/?cmd=sub&mq=Q&channel=C") as response:
        assert (response.status, await response.read()) == (200, b"")
