"""Invalid, oversized, slow and hostile requests: a clear answer, and no effect on other clients."""

import asyncio
import json
import socket

import aiohttp
import pytest

import busway
from tests.support import door as doors

BROKEN = [b"", b"{", b"[]", b'"pub"', b"nul", b"\xff\xfe", b'{"cmd":"pub","mq":"Q","body":"\xff"}', b'{"cmd":"pub"} x', b"[" * 100_000, b'{"a":' * 50_000, b"1e999"]  # fmt: skip


@pytest.mark.parametrize("data", BROKEN, ids=lambda data: repr(data[:12]))
async def test_broken_json(door, data):
    async with door.ws() as ws:
        await ws.socket.send_bytes(data)
        answer = await ws.recv()
        assert (answer["status"], answer["body"]) == (400, "json format required")
        assert (await ws.ask(cmd="ping", id="p"))["status"] == 200
    if data:
        async with door.session.post(door.url + "/", data=data) as response:
            assert (response.status, (await response.json())["body"]) == (400, "json format required")


WRONG = [
    {"cmd": 7},
    {"cmd": ["pub"]},
    {"cmd": "pub", "mq": {"a": 1}},
    {"cmd": "pub", "mq": "Q", "id": {"a": 1}},
    {"cmd": "pub", "mq": "Q", "ack": "maybe"},
    {"cmd": "pub", "mq": "Q", "ack": []},
    {"cmd": "sub", "mq": "Q", "channel": True},
    {"cmd": "sub", "mq": "Q", "channel": "C", "window": "many"},
    {"cmd": "sub", "mq": "Q", "channel": "C", "window": -1},
    {"cmd": "sub", "mq": "Q", "channel": "C", "window": 1.5},
    {"cmd": "sub", "mq": "Q", "channel": "C", "topic": "x" * 200, "filter": "x" * 200},
    {"cmd": "take", "mq": "Q", "channel": "C", "window": 2**80},
    {"cmd": "take", "mq": "Q", "channel": "C", "timeout": "soon"},
    {"cmd": "take", "mq": "Q", "channel": "C", "timeout": -1},
    {"cmd": "create", "mq": "Q", "mqMask": -1},
    {"cmd": "create", "mq": "Q", "mqMask": "x"},
    {"cmd": "create", "mq": "Q", "channel": "C", "channelMask": 2**40},
    {"cmd": "create", "mq": "Q", "channel": "C", "offset": -5},
    {"cmd": "create", "mq": "Q", "channel": "/" * 100},
    {"cmd": "create", "mq": "a//b"},
    {"cmd": "create", "mq": "a/*"},
    {"cmd": "create", "mq": "a\x00b"},
    {"cmd": "pub", "mq": "a/**", "body": 1},
    {"cmd": "pub", "mq": "Q", ".reserved": 1, "body": 1},
    {"cmd": "pub", "mq": "Q", "big": 2**70, "body": 1},
    {"cmd": "pub", "mq": "Q", "deep": json.loads("[" * 40 + "]" * 40)},
    {"cmd": "route", "body": 1},
    {"cmd": "bind", "mq": "Q", "body": [{"url": 7}]},
    {"cmd": "bind", "mq": "Q", "body": [{"url": "/$bus/x"}]},
    {"method": 7},
    {"method": ""},
    {"method": "a", "timeout": []},
]


@pytest.mark.parametrize("request_", WRONG, ids=lambda one: json.dumps(one)[:60])
async def test_wrong_types(door, form, request_):
    async with door.ws(form) as ws:
        await ws.done(cmd="create", mq="Q", channel="C")
        if "method" in request_ and form == "headers":
            return
        answer = await ws.ask(**request_)
        assert answer["status"] in {400, 404}, answer
        assert answer["body"]
        assert (await ws.done(cmd="query", mq="Q"))["body"]["size"] == 0


async def test_topics_of_the_broker(door):
    async with door.ws() as ws:
        assert (await ws.ask(cmd="create", mq="$bus/x"))["status"] in {400, 403}
        assert (await ws.ask(cmd="pub", mq="$bus/info"))["status"] == 404
        assert (await ws.ask(method="$bus/info"))["status"] == 403
    assert (await door.http.call("/$bus/info"))[0] == 403


async def test_huge_bodies(tmp_path):
    async with doors.opened(body=50_000) as door, door.ws() as other:
        await other.done(cmd="create", mq="Q", channel="C")
        async with door.session.post(door.url + "/", data=b"x" * 60_000) as response:
            assert (response.status, (await response.json())["body"]) == (
                413,
                "the request is too large: it may have 50000 bytes",
            )
        async with door.ws() as ws:
            await ws.socket.send_str("x" * 60_000)
            closed = await asyncio.wait_for(ws.socket.receive(), 10)
            assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1009)
        async with door.ws() as ws:  # in many frames
            part = b"x" * 5000
            for number in range(11):
                head = bytes((0 if number else 1, 0x80 | 126)) + len(part).to_bytes(2) + bytes(4)
                ws.socket._writer.transport.write(head + part)
            closed = await asyncio.wait_for(ws.socket.receive(), 10)
            assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1009)
        await other.done(cmd="ping", id="p")


async def test_a_body_beyond_what_the_bus_takes(tmp_path):
    async with doors.opened(settings=busway.Settings(frame=64 * 1024, fields=2048)) as door, door.ws() as ws:
        await ws.done(cmd="create", mq="Q", channel="C")
        for message in ({"body": "x" * 100_000}, {"body": "x", "extra": "y" * 5000}):
            answer = await ws.ask(cmd="pub", mq="Q", id="big", **message)
            assert (answer["id"], answer["status"]) == ("big", 413), answer
        await ws.done(cmd="pub", mq="Q", body="small")


async def test_fragmented_messages(door):
    async with door.ws() as ws:
        text = json.dumps({"cmd": "ping", "id": "whole"}).encode()
        writer = ws.socket._writer
        for place, part in enumerate((text[:5], text[5:9], text[9:])):
            # FIN only on the last; masked with nothing
            first = (0x80 if place == 2 else 0) | (1 if place == 0 else 0)
            writer.transport.write(bytes((first, 0x80 | len(part))) + bytes(4) + part)
        assert (await ws.recv())["id"] == "whole"


async def test_slow_requests(tmp_path):
    async with doors.opened(slow=0.2) as door:
        host, port = door.url.removeprefix("http://").split(":")
        for text in (b"POST / HT", b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(text)
            got = await asyncio.wait_for(reader.read(), 10)
            assert not got or b" 408 " in got.splitlines()[0]
            writer.close()
        assert (await door.http.get("/?cmd=ping"))[0] == 200


async def test_a_client_that_never_reads(tmp_path):
    """It costs what fits in its buffers, is told and closed; another one of the same channel gets everything else."""
    async with doors.opened(stall=1.0) as door, door.ws() as other:
        await other.done(cmd="create", mq="Q", channel="C")
        host, port = door.url.removeprefix("http://").split(":")
        stuck = socket.create_connection((host, int(port)))
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.setblocking(False)
        key = "dGhlIHNhbXBsZSBub25jZQ=="
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(
            stuck,
            f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode(),
        )
        assert b"101" in await loop.sock_recv(stuck, 1024)
        text = b'{"cmd":"sub","mq":"Q","channel":"C"}'
        await loop.sock_sendall(stuck, bytes((0x81, 0x80 | len(text))) + bytes(4) + text)
        while not (await door.bus.channel_info("Q", "C")).consumers:
            await asyncio.sleep(0.01)
        await other.done(cmd="sub", mq="Q", channel="C")
        got = 0

        async def count():
            nonlocal got
            while True:
                message = await other.recv(30)
                got += "status" not in message

        counting = asyncio.create_task(count())
        payload = "x" * 10_000
        for _ in range(2000):
            await door.bus.publish("Q", payload, durable=True)
        (one,) = door.server._open
        async with asyncio.timeout(30):
            while one.figures()["slow"] == 0:
                await asyncio.sleep(0.05)
        assert got > 1500  # all but what the kernel holds for the one that does not read
        counting.cancel()
        stuck.close()


async def test_many_queues(tmp_path):
    async with doors.opened(settings=busway.Settings(streams=50)) as door, door.ws() as ws:
        for number in range(60):
            await ws.send({"cmd": "create", "mq": f"Q{number}"})
        got = [await ws.recv() for _ in range(60)]
        assert [one["status"] for one in got] == [200] * 49 + [500] * 11
        assert got[-1]["body"] == "there are 50 streams already (setting streams)"
        await ws.done(cmd="pub", mq="Q3", body=1)
        await ws.done(cmd="remove", mq="Q3")
        await ws.done(cmd="create", mq="New")


async def test_header_injection(door):
    evil = "x\r\nSet-Cookie: a=b\r\n\r\n<script>"
    async with door.session.get(door.url + "/", params={"cmd": "ping", "id": evil}) as response:
        assert "Set-Cookie" not in response.headers
        assert (await response.json())["id"] == evil
    async with door.session.get(
        door.url + "/", params={"id": evil, "mq": "ü\r\nA: b"}, headers={"cmd": "ping"}
    ) as response:
        assert (response.status, "Set-Cookie" in response.headers) == (200, False)
        assert "\r" not in response.headers["id"]
        assert response.headers["id"].startswith("x%0D%0A")
    async with door.ws("headers") as ws, door.ws("flat") as caller:
        await ws.done(cmd="create", mq="Q", channel="Q")
        await ws.done(cmd="sub", mq="Q", channel="Q")
        asked = asyncio.ensure_future(
            door.session.get(door.url + "/Q/m/f", headers={"cmd": "pub", "mq": "Q", "ack": "false"})
        )
        got = await ws.raw()
        await ws.send(
            {
                "cmd": "route",
                "recver": got["headers"]["source"],
                "id": got["headers"]["id"],
                "x-a": evil,
                "content-length": "5",
                "body": "y",
            }
        )
        response = await asked
        assert (response.status, await response.text()) == (200, "y")
        assert "Set-Cookie" not in response.headers
        response.close()
        await caller.done(cmd="ping", id="p")


async def test_pages_of_elsewhere(tmp_path):
    evil, good = "https://evil.example", "https://good.example"
    async with doors.opened(cors=[good]) as door:
        for headers in (
            {"Origin": evil},
            {"Origin": "null"},
            {"Origin": "http://["},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
        ):
            async with door.session.get(door.url + "/?cmd=ping", headers=headers) as response:
                assert response.status == 403, headers
            async with door.session.get(door.url + "/services", headers=headers) as response:
                assert (response.status, "Access-Control-Allow-Origin" in response.headers) == (200, False)
        for headers in (
            {"Sec-Fetch-Site": "none"},
            {"Sec-Fetch-Site": "same-origin"},
            {"Sec-Fetch-Site": "same-origin", "Host": "good.example"},
            {"Sec-Fetch-Site": "same-origin", "Host": "localhost:15555"},
            {"Origin": "http://[::1]:15555", "Host": "[::1]:15555"},
        ):
            async with door.session.get(door.url + "/?cmd=ping", headers=headers) as response:
                assert response.status == 200, headers
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await door.session.ws_connect(door.url, headers={"Origin": evil})
        async with door.session.ws_connect(door.url, headers={"Origin": good}):
            pass
        async with door.session.get(door.url + "/?cmd=ping", headers={"Origin": good}) as response:
            assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (200, good)
        asked = {"Origin": good, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "cmd, mq"}
        async with door.session.options(door.url + "/", headers=asked) as response:
            assert (response.status, response.headers["Access-Control-Allow-Headers"]) == (204, "cmd, mq")
        async with door.session.options(door.url + "/", headers=asked | {"Origin": evil}) as response:
            assert (response.status, "Access-Control-Allow-Origin" in response.headers) == (403, False)
        own = door.url
        async with door.session.get(door.url + "/?cmd=ping", headers={"Origin": own}) as response:
            assert response.status == 200


@pytest.mark.parametrize("ack", ["365.25", "maybe", "[]"])
async def test_an_ack_that_is_neither_true_nor_false(door, ack):
    """Over plain HTTP it decides how a request is answered."""
    await door.http.get("/?cmd=create&mq=Q&channel=C")
    for asked in ("cmd=route&recver=x", "cmd=pub&mq=Q&body=1", "cmd=sub&mq=Q&channel=C"):
        status, answer = await door.http.get(f"/?{asked}&ack={ack}&id=7")
        assert (status, answer) == (400, {"id": "7", "status": 400, "body": "ack must be true or false"}), asked
    for value in ({}, [], {"a": 1}, 7, 365.25):
        for asked in (
            {"cmd": "route", "recver": "x"},
            {"cmd": "pub", "mq": "Q"},
            {"cmd": "sub", "mq": "Q", "channel": "C"},
        ):
            assert (await door.http.post(asked | {"ack": value}))[0] == 400
    assert (await door.http.get("/?cmd=query&mq=Q"))[1]["body"]["size"] == 0


async def test_an_answer_with_a_wrong_ack_is_not_passed_on(door):
    async with door.ws() as caller, door.ws() as server:
        await caller.done(cmd="create", mq="Q", channel="C")
        await server.done(cmd="sub", mq="Q", channel="C")
        await caller.done(cmd="pub", mq="Q", body=1)
        sender = (await server.recv())["sender"]
        assert (await server.ask(cmd="route", recver=sender, id="x", ack="maybe"))["status"] == 400
        await caller.silent()


async def test_a_silent_sub_that_is_refused_is_told_all_the_same(door):
    """With `ack` false a good one is not answered; a bad one does not hang."""
    for path, status in (("mq=No&channel=C", 404), ("channel=C", 400), ("mq=No", 400)):
        assert (await door.http.get(f"/?cmd=sub&ack=false&{path}"))[0] == status
    await door.http.get("/?cmd=create&mq=Q&channel=C")
    async with door.session.get(door.url + "/?cmd=sub&mq=Q&channel=C&ack=false") as response:
        assert response.status == 200
        await door.bus.publish("Q", "first", durable=True)
        assert json.loads(await response.content.readline())["body"] == "first"


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x00", b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"],
    ids=lambda data: repr(data[:20]),
)  # fmt: skip
async def test_what_is_no_http(door, data, caplog):
    """It is answered with 400, and fills no log."""
    host, port = door.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    writer.write_eof()
    got = await asyncio.wait_for(reader.read(), 10)
    assert not got or got.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 ")), got
    writer.close()
    assert (await door.http.get("/?cmd=ping"))[0] == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_huge_and_slow_events():
    head = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}

    async def slowly():
        yield b"x"
        await asyncio.Event().wait()

    async with doors.opened(body=50_000, slow=0.2) as door:
        async with door.session.post(door.url + "/events/a", data=b"x" * 60_000, headers=head) as response:
            assert (response.status, list(await response.json())) == (413, ["error"])
        async with door.session.post(door.url + "/events/a", data=slowly(), headers=head) as response:
            assert (response.status, list(await response.json())) == (408, ["error"])
        assert (await door.http.get("/events"))[0] == 400


HEAD = b"POST /?cmd=pub&mq=Q HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\ncmd: ping\r\nid: \xff\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\ncmd: create\r\nmq: \xff\r\n\r\n",
        HEAD + b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 10\r\n\r\n--x\r\nbroke",
        HEAD + b"Content-Type: multipart/form-data\r\nContent-Length: 10\r\n\r\n--x\r\nbroke",
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8bxx",
        HEAD.replace(b"/?cmd=pub&mq=Q", b"/events/Q")
        + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8bxx",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["id", "mq", "form", "boundary", "gzip", "gzip event", "chunk"],
)
async def test_http_that_is_not_what_it_says(door, data, caplog):
    await door.http.get("/?cmd=create&mq=Q&channel=C")
    host, port = door.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    got = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert b" 400 " in got.splitlines()[0], got
    assert (await door.http.get("/?cmd=query&mq=Q"))[1]["body"]["size"] == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_names_in_headers(door):
    """HTTP has no letters beyond ASCII: they come as UTF-8, and are escaped in the answer."""
    head = {"cmd": "create", "mq": "a/Bücher", "channel": "ü/x"}
    async with door.session.get(door.url, headers=head) as response:
        assert (response.status, await response.text()) == (200, "OK, CREATE (mq=a/Bücher,channel=ü/x)")
    async with door.session.get(door.url, headers=head | {"cmd": "take"}) as response:
        assert (response.status, response.headers["mq"], response.headers["channel"]) == (
            604,
            "a/B%C3%BCcher",
            "%C3%BC/x",
        )
