"""Calls by URL, as services of released zbus clients get them and as browsers see the answers."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from busway.gateway.json import url_calls
from busway.gateway.json.envelope import UNSET


@asynccontextmanager
async def service(door, answer, mq="MyRpc", urls=(), form="headers"):
    """A client that serves a queue as the released ones do; the calls that it gets are in the list."""
    calls = []

    async def work(ws):
        while True:
            call = await ws.raw(60)
            calls.append(call)
            head = call["headers"] if form == "headers" else call
            made = answer(call) | {"cmd": "route"}
            made |= {"recver": head["source" if form == "headers" else "sender"], "id": head["id"]}
            await ws.send(made)

    async with door.ws(form) as ws:
        await ws.done(cmd="create", mq=mq, channel=mq)
        await ws.done(cmd="sub", mq=mq, channel=mq)
        if urls:
            await ws.done(cmd="bind", mq=mq, body=[{"url": url, "mq": mq} for url in urls])
        task = asyncio.create_task(work(ws))
        try:
            yield calls
        finally:
            task.cancel()
            await asyncio.wait([task])


def html(call):
    return {"status": 200, "body": f"<h1>{call['url']}</h1>", "content-type": "text/html; charset=utf8"}


async def test_a_home_page_beside_others(door):
    """As rpc_server.js mounts it: one of the URLs that are bound is `/`."""
    async with service(door, html, urls=["/example/plus", "/", "/doc"]), door.ws("headers") as ws:
        assert await door.http.call("/") == (200, "<h1>/</h1>", "text/html")
        assert await door.http.call("/?x=1") == (200, "<h1>/?x=1</h1>", "text/html")
        assert (await door.http.call("/example/plus/1/2"))[1] == "<h1>/example/plus/1/2</h1>"
        assert (await door.http.call("/elsewhere"))[1] == "<h1>/elsewhere</h1>"
        assert (await ws.done(url="/", body=[]))["body"] == "<h1>/</h1>"
        async with door.bus.serve("native", lambda message: "mine"):
            assert (await door.http.call("/native"))[1] == "mine"
        assert (await door.http.get("/?cmd=ping"))[0] == 200
        assert (await door.http.get("/healthz"))[1]["status"] == "ok"
    async with asyncio.timeout(60):
        while (await door.http.call("/?x=1"))[0] != 400:
            await asyncio.sleep(0.01)


async def test_a_call_of_a_bound_url_is_the_request(door):
    def answer(call):
        return {"body": [call.get("method"), call["url"], call["body"], call["status"]]}

    async with service(door, answer, urls=["/raw/x"]) as calls:
        assert (await door.http.call("/raw/x/1/2?a=b&c=%C3%BC"))[1] == ["GET", "/raw/x/1/2?a=b&c=%C3%BC", None, None]
        assert (await door.http.call("/raw/x", "POST", json=[1, {"a": 2}]))[1] == [
            "POST",
            "/raw/x",
            [1, {"a": 2}],
            None,
        ]
        assert (await door.http.call("/raw/x", "PUT", json={"a": 2}))[1] == ["PUT", "/raw/x", '{"a": 2}', None]
        assert calls[-1]["headers"]["content-type"] == "application/json"
        assert (await door.http.call("/raw/x/1?apiKey=k&signature=s&a=b"))[1][1] == "/raw/x/1?a=b"
    for call in calls:
        assert not {"module", "params", "bound", "verb"} & call["headers"].keys()


async def test_a_flat_service_gets_module_method_and_params(door):
    def answer(call):
        return {"body": [call["module"], call["method"], call["params"]]}

    async with service(door, answer, urls=["/raw/x"], form="flat") as calls:
        assert (await door.http.call("/raw/x/1/a%2Fb?k=v"))[1] == ["raw", "x", ["1", "a/b", {"k": "v"}]]
        assert (await door.http.call("/raw/x", "POST", json=[1, 2]))[1] == ["raw", "x", [1, 2]]
        async with door.ws("headers") as ws:
            assert (await ws.done(url="/raw/x", body=[3]))["body"] == ["raw", "x", [3]]
        assert (await door.bus.request("raw/x", [4])).json() == ["raw", "x", [4]]
    assert not any("bound" in call for call in calls)


ANSWERS = [
    ({"body": 3, "content-type": "application/json; charset=utf8;"}, (200, 3, "application/json")),
    ({"body": "<p>", "Content-Type": "text/html; charset=utf8"}, (200, "<p>", "text/html")),
    ({"body": '{"a":1}', "content-type": "application/json"}, (200, {"a": 1}, "application/json")),
    ({"body": {"x": "1"}}, (200, {"x": "1"}, "application/json")),
    ({"body": "text"}, (200, "text", "text/plain")),
    ({"body": None}, (200, "", "text/plain")),
    (
        {"status": 404, "body": "Url=/x Not Found", "content-type": "text/plain"},
        (404, "Url=/x Not Found", "text/plain"),
    ),
    ({"status": 500, "body": "oops"}, (500, "oops", "text/plain")),
    ({"status": 418, "body": "tea"}, (418, "tea", "text/plain")),
]


@pytest.mark.parametrize(("given", "wanted"), ANSWERS)
async def test_an_answer_is_the_body_with_the_content_type_of_the_service(door, given, wanted):
    async with service(door, lambda call: given, urls=["/x"]):
        assert await door.http.call("/x") == wanted
        async with door.session.get(door.url + "/x", headers={"cmd": "pub", "ack": "false"}) as response:
            assert response.headers.getall("Content-Type") == [response.headers["Content-Type"]]
            assert response.content_type == wanted[2]


async def test_headers_of_an_answer(door):
    """A service redirects and sets cookies; it does not say how the answer is sent, and to which pages it is shown."""
    said = {
        "Location": "/y",
        "set-cookie": "a=b",
        "connection": "close",
        "transfer-encoding": "chunked",
        "content-length": "7",
    }
    said |= {"access-control-allow-origin": "*", "a\r\nb": "c\r\nd: e"}
    async with service(door, lambda call: {"status": 302, "body": "go", **said}, urls=["/x"]):
        async with door.session.get(door.url + "/x", allow_redirects=False) as response:
            assert (response.status, await response.text()) == (302, "go")
            assert (response.headers["Location"], response.headers["Set-Cookie"]) == ("/y", "a=b")
            names = {name.lower() for name in response.headers}
            assert not names & {"access-control-allow-origin", "transfer-encoding", "d", "sender", "recver"}
    async with service(door, lambda call: {"status": 204}, urls=["/empty"]):
        async with door.session.get(door.url + "/empty") as response:
            assert (response.status, await response.read()) == (204, b"")


@pytest.mark.parametrize("mq", ["/", "/svc", "/svc/v1"])
async def test_a_queue_whose_name_is_a_url(door, mq):
    """zbuspy 1.2.0 binds nothing: its queue is called by the URL that its services begin with, which is `/` by default."""
    begin = mq.rstrip("/")

    def answer(call):
        return {"body": [call.get("method"), call["url"], call["body"]]}

    async with service(door, answer, mq=mq), door.ws("headers") as ws:
        assert (await door.http.call(f"{begin}/plus/1/2?a=b"))[1] == ["GET", f"{begin}/plus/1/2?a=b", None]
        assert (await door.http.call(f"{begin}/plus", "POST", json=[1]))[1] == ["POST", f"{begin}/plus", [1]]
        assert (await ws.done(url=f"{begin}/plus", body=[1, 2]))["body"] == [None, f"{begin}/plus", [1, 2]]


async def test_a_queue_whose_name_has_several_parts(door):
    async with service(door, lambda call: {"body": call["url"]}, mq="svc/v1"), door.ws("headers") as ws:
        assert (await ws.done(url="/svc/v1/plus?a=b", body=[1, 2]))["body"] == "/svc/v1/plus?a=b"
        assert (await door.http.call("/svc/v1/m/plus/1"))[1] == "/m/plus"


async def test_a_call_has_all_that_services_look_for(door):
    """zbus-lib ignores a call without `status`, `url` and `body`."""
    async with service(door, lambda call: {"body": 1}, urls=["/f"]) as calls, door.ws("headers") as ws:
        await ws.done(url="/f", body=[1])
        await ws.done(url="/f")
        await door.http.call("/f/1")
        await door.http.call("/MyRpc/m/f/1")
        await door.bus.request("f", [2])
        await door.bus.request("MyRpc", {"module": "m", "method": "f", "params": [4]})
    assert [call["body"] for call in calls] == [[1], None, None, ["1"], [2], [4]]
    assert all({"headers", "url", "status", "body"} <= call.keys() and call["status"] is None for call in calls)


@pytest.mark.parametrize(
    ("url", "own", "mq", "body", "wanted"),
    [
        ("/a/b/1", "/a/b", "Q", UNSET, ("a", "b", ["1"])),
        ("/b", "b", "Q", UNSET, ("", "b", [])),
        ("/1?x=2", "/", "Q", UNSET, ("", "", ["1", {"x": "2"}])),
        ("/svc/v1/m/f/1", "/svc/v1", "svc/v1", UNSET, ("m", "f", ["1"])),
        ("/svc/v1", "/svc/v1", "/svc/v1", UNSET, ("index", "index", [])),
        ("/m/f/%2F", "/", "/", UNSET, ("m", "f", ["/"])),
        ("/a/b", None, "Q", [1], ("a", "b", [1])),
    ],
)
def test_module_method_and_arguments_of_a_url(url, own, mq, body, wanted):
    assert url_calls.called(url, own, mq, body) == wanted


async def test_calls_by_url_through_another_node(tmp_path):
    """The URL and the method of HTTP go along."""
    import aiohttp

    import busway
    from tests.support.door import Door, Http

    http = busway.Http(address="127.0.0.1:0")
    async with (
        busway.serve("tcp://127.0.0.1:0", name="a", cluster="c", http=http) as first,
        busway.serve("tcp://127.0.0.1:0", name="b", cluster="c", servers=first.addresses, http=http) as second,
        first.connect() as bus,
        aiohttp.ClientSession() as session,
    ):

        def answer(call):
            return {"body": [call.get("method"), call["url"], call["body"]]}

        async with service(Door(first, bus, session), answer, urls=["/raw/x"]):
            other = Http(session, second.http)
            async with asyncio.timeout(60):
                while (got := await other.call("/raw/x/1?a=b"))[0] == 404:
                    await asyncio.sleep(0.05)
            assert got[1] == ["GET", "/raw/x/1?a=b", ["1"]]
