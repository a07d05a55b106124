"""Calls through the JSON door: of services of the bus, and of clients of the door, from either side."""

import asyncio

import pytest

import busway
from tests.support import door as doors
from tests.support.json_workers import Worker, arguments, plus


async def test_a_service_of_the_bus(door, form):
    def divide(message):
        first, second = message.json()
        return first / second

    async with door.bus.serve("example/divide", divide), door.ws(form) as ws:
        call = {"module": "example", "method": "divide"} if form == "flat" else {"url": "/example/divide"}
        params = "params" if form == "flat" else "body"
        assert await ws.ask(**call, **{params: [6, 3]}, id="1") == {"id": "1", "status": 200, "body": 2.0}
        failed = await ws.ask(**call, **{params: [6, 0]})
        assert (failed["status"], failed["body"]) == (500, "ZeroDivisionError: division by zero")


async def test_results_of_any_kind(door):
    results = iter(["text", b"\xff\x00", {"a": 1}, None, "123"])
    async with door.bus.serve("give", lambda message: next(results)), door.ws() as ws:
        got = [await ws.done(method="give") for _ in range(5)]
        assert [one["body"] for one in got] == ["text", "/wA=", {"a": 1}, "", 123]
        assert [one.get("encoding") for one in got] == [None, "base64", None, None, None]


async def test_nobody_and_too_late(door, form):
    over = asyncio.Event()

    async def never(message):
        await over.wait()

    async with door.bus.serve("slow/one", never), door.ws(form) as ws:
        late = {"module": "slow", "method": "one"} if form == "flat" else {"url": "/slow/one"}
        assert (await ws.ask(**late, timeout=0.05))["status"] == 504
        nobody = {"module": "no", "method": "body"} if form == "flat" else {"url": "/no/body"}
        assert (await ws.ask(**nobody))["status"] == 404
        for topic in ("$bus/info", "a//b", "*"):
            asked = {"method": topic} if form == "flat" else {"url": "/" + topic}
            assert (await ws.ask(**asked))["status"] in {400, 403, 404}, topic
        over.set()


async def test_a_queue_that_nobody_serves(tmp_path, form):
    async with doors.opened(call=0.1) as door, door.ws(form) as ws, door.ws() as silent:
        await ws.done(cmd="create", mq="MyRpc", channel="MyRpc")
        call = {"cmd": "pub", "mq": "MyRpc", "ack": False, "id": "1"}
        call |= {"module": "m", "method": "f", "params": []} if form == "flat" else {"url": "/MyRpc/m/f"}
        assert (await ws.ask(**call)) == {
            "id": "1",
            "status": 404,
            "body": "MQ(MyRpc) has no service now: no client subscribes to it",
        }
        await silent.done(cmd="sub", mq="MyRpc", channel="MyRpc")
        assert (await ws.ask(**call))["status"] == 504
        call["mq"] = "Other"
        if form == "headers":
            call["url"] = "/Other/m/f"
        assert (await ws.ask(**call))["status"] == 404


@pytest.mark.parametrize("callers", doors.FORMS)
async def test_a_client_of_the_door_serves(door, form, callers):
    async with door.ws(form) as server, Worker(server, plus, bind=["/example/plus"]), door.ws(callers) as ws:
        if callers == "flat":
            call = {"cmd": "pub", "mq": "MyRpc", "ack": False, "module": "example", "method": "plus", "params": [1, 2]}
        else:
            call = {"url": "/example/plus", "body": [1, 2]}
        answer = await ws.ask(**call, id="c1")
        assert (answer["id"], answer["status"], answer["body"]) == ("c1", 200, 3)
        if callers == "headers":
            assert not {"target", "source", "cmd"} & answer.keys()
        else:
            call["params"] = ["x"]
            failed = await ws.ask(**call)
            assert (failed["status"], "invalid literal" in failed["body"]["error"]) == (500, True)


async def test_the_bus_calls_a_client_of_the_door(door, form):
    async with door.ws(form) as server, Worker(server, plus, bind=["/example/plus"]):
        reply = await door.bus.request("example/plus", [1, 2])
        assert reply.json() == 3
        reply = await door.bus.request("MyRpc", {"module": "example", "method": "plus", "params": [4, 5]})
        assert reply.json() == 9
        with pytest.raises(busway.HandlerError, match="invalid literal"):
            await door.bus.request("example/plus", ["x"])
    async with asyncio.timeout(10):
        while True:  # it has left, and so has its service
            try:
                await door.bus.request("example/plus", [1], timeout=1)
            except busway.NoResponders:
                break
            except busway.BusError:
                continue


async def test_calls_by_address(door, form):
    """Of a queue without URLs: its name comes first, then module, method and arguments."""
    async with door.ws(form) as server, Worker(server, plus):
        assert await door.http.call("/MyRpc/example/plus/1/2") == (200, 3, "application/json")
        assert (await door.http.call("/example/plus?mq=MyRpc&params=1,2/3"))[1] == 6
        assert (await door.http.call("/MyRpc/example/plus", "POST", json=[4, 5]))[1] == 9
        status, body, kind = await door.http.call("/MyRpc/example/plus/x")
        assert (status, "invalid literal" in body["error"], kind) == (500, True, "application/json")
    async with door.bus.serve("example/plus", lambda message: sum(map(int, message.json()))):
        assert await door.http.call("/example/plus/1/2") == (200, 3, "application/json")
        assert (await door.http.call("/example/plus", "POST", json=[4, 5]))[1] == 9
        async with door.session.get(door.url + "/example/plus/7", headers={"cmd": "pub", "ack": "false"}) as response:
            assert (response.status, await response.text()) == (200, "7")
    assert await door.http.call("/example/plus/1/2") == (404, "/example/plus/1/2 Not Found", "text/plain")


async def test_answers_by_address_are_the_body_alone(door):
    """Of services of the bus: JSON, text or bytes."""
    results = iter(["text", {"a": 1}, [1, None], b"\xff\x00", None])
    async with door.bus.serve("give", lambda message: next(results)):
        assert await door.http.call("/give") == (200, "text", "text/plain")
        assert await door.http.call("/give") == (200, {"a": 1}, "application/json")
        assert await door.http.call("/give") == (200, [1, None], "application/json")
        async with door.session.get(door.url + "/give") as response:
            assert (await response.read(), response.content_type) == (b"\xff\x00", "application/octet-stream")
            assert "encoding" not in response.headers
        assert await door.http.call("/give") == (200, "", "text/plain")


async def test_route(door, form):
    async with door.ws(form) as one, door.ws(form) as two:
        await one.done(cmd="create", mq="Q", channel="C")
        await two.done(cmd="sub", mq="Q", channel="C")
        await one.done(cmd="pub", mq="Q", id="m", body="x")
        got = await two.recv()
        answer = await two.ask(cmd="route", recver=got["sender"], id="m", status=201, body="y", ack=True)
        assert (answer["status"], answer["body"]) == (200, "OK")
        routed = await one.recv()
        assert (routed["id"], routed["status"], routed["body"]) == ("m", 201, "y")
        await two.send({"cmd": "route", "recver": "nobody", "id": "m"})
        await two.silent()
        assert (await two.ask(cmd="route", id="m"))["status"] == 400
        assert (await two.ask(cmd="route", recver=got["sender"], id="m", status="x"))["status"] == 400


async def test_bind(door):
    async with door.ws("headers") as ws:
        await ws.done(cmd="create", mq="Q", channel="Q")
        assert (await ws.ask(cmd="bind", mq="Q", body="x"))["status"] == 400
        assert (await ws.ask(cmd="bind", mq="Q", body=[{"url": "/a", "mq": "R"}]))["status"] == 500
        assert (await ws.done(cmd="bind", mq="Q", body=[{"url": "/a/b"}, {"url": "/a/c", "mq": "Q"}]))[
            "body"
        ] == "OK, BIND URL (mq=Q)"
        assert {"a/b", "a/c"} <= set(door.server.services())
        await ws.done(cmd="bind", mq="Q", body=[{"url": "/a/d"}], clearBind=False)
        assert {"a/b", "a/c", "a/d"} <= set(door.server.services())
        await ws.done(cmd="bind", mq="Q", body=[{"url": "/a/c"}])
        assert set(door.server.services()) == {"a/c"}
        async with door.bus.serve("mine", lambda message: 1):
            assert (await ws.ask(cmd="bind", mq="Q", body=[{"url": "/mine"}]))["status"] == 403


async def test_what_can_be_called_can_be_looked_at(door):
    async with (
        door.ws() as server,
        Worker(server, plus, bind=["/calc/<b>/plus"]),
        door.bus.serve("hello", lambda message: "hi"),
    ):
        status, found = await door.http.get("/services")
        assert status == 200
        assert found["modules"] == [
            {"module": "", "methods": [
                {"method": "MyRpc", "url": "/MyRpc", "topic": "MyRpc", "mq": "MyRpc"},
                {"method": "hello", "url": "/hello", "topic": "hello"},
            ]},
            {"module": "calc/<b>", "methods": [{"method": "plus", "url": "/calc/<b>/plus", "topic": "calc/<b>/plus", "mq": "MyRpc"}]},
        ]  # fmt: skip
        async with door.session.get(door.url + "/services", headers={"Accept": "text/html,*/*"}) as response:
            page = await response.text()
        assert "calc/&lt;b&gt;" in page
        assert "<b>" not in page


async def test_slashes_and_others_in_an_address(door, form):
    """What is escaped in a part of a path is in that part."""
    got = []
    async with door.bus.serve("echo/all", lambda message: got.append(message.json())):
        assert (await door.http.call("/echo/all/a%2Fb/50%25/%C3%BC/%253F"))[0] == 200
        assert got.pop() == ["a/b", "50%", "ü", "%3F"]
        async with door.session.get(
            door.url + "/echo/all/x%2Fy?k=v%26", headers={"cmd": "pub", "ack": "false"}
        ) as response:
            assert response.status == 200
        assert got.pop() == ["x/y", {"k": "v&"}]
    async with door.ws(form) as server, Worker(server, lambda message: (200, arguments(message)), mq="a/b"):
        assert (await door.http.call("/a%2Fb/module/method/1%2F2"))[1] == ["1/2"]
        assert (await door.http.call("/a/b/module/method/1"))[1] == ["1"]
        assert (await door.http.call("/module/method/3?mq=a/b"))[1] == ["3"]


async def test_a_bound_url_comes_as_it_was_asked_for(door):
    asked = []

    def answer(message):
        asked.append(message["url"])
        return 200, None

    async with door.ws("headers") as server, Worker(server, answer, bind=["/shop/orders"]), door.ws("headers") as ws:
        await ws.done(url="/shop/orders/7?full=1")
        async with door.session.get(door.url + "/shop/orders/%C3%BC?full=2") as response:
            assert response.status == 200
        assert asked[0] == "/shop/orders/7?full=1"
        assert asked[1] == "/shop/orders/%C3%BC?full=2"


async def test_a_service_that_leaves_before_it_answers(door, form):
    """Who waits for the last one is told at once, whichever way it was asked."""
    async with door.ws(form) as ws, door.ws(form) as caller:
        await ws.done(cmd="create", mq="MyRpc", channel="MyRpc")
        async with door.ws(form) as one, door.ws(form) as two:
            for worker in (one, two):
                await worker.done(cmd="sub", mq="MyRpc", channel="MyRpc")
            native = asyncio.ensure_future(door.bus.request("MyRpc", {"method": "f"}, timeout=60))
            web = asyncio.ensure_future(door.http.call("/MyRpc/m/f?timeout=60"))
            call = {"method": "f"} if form == "flat" else {"url": "/MyRpc/m/f"}
            await caller.send({"cmd": "pub", "mq": "MyRpc", "ack": False, "id": "c", "timeout": 60, **call})
            (http,) = door.server._open
            async with asyncio.timeout(60):
                while http.figures()["delivered"] < 3:
                    await asyncio.sleep(0.01)
            await one.socket.close()
            await caller.send({"cmd": "ping", "id": "still"})
            assert (await caller.recv())["id"] == "still"  # the other one may answer
        answer = await caller.recv()
        assert (answer["id"], answer["status"]) == ("c", 502)
        assert (await web)[0] == 502
        with pytest.raises(busway.HandlerError, match="disconnected before"):
            await native


async def test_services_that_come_and_go_are_forgotten(door, monkeypatch):
    """The engine does not tell when one that is not shared is given up; what is remembered is bounded."""
    from busway.broker import admission

    monkeypatch.setattr(admission, "SERVED", 3)
    for number in range(10):
        async with door.bus.serve(f"passing/{number}", lambda message: 1):
            pass
    assert door.server.services() == []
    async with door.bus.serve("stays", lambda message: 1):
        assert "stays" in door.server.services()
        assert len(door.server.services()) <= 3
