"""The guard of the door: what each key may do, in commands, calls and event addresses."""

import asyncio
import json
import time
from contextlib import asynccontextmanager

import pytest

from busway.gateway.auth.grants import Key
from busway.gateway.auth.guard import Guard
from busway.gateway.auth.signatures import signed
from busway.gateway.json.statuses import Refused
from tests.support import door as doors

KEYS = """
[[key]]
apiKey = "all"
secretKey = "s"
publish = ["**"]
subscribe = ["**"]
serve = ["**"]
request = ["**"]

[[key]]
apiKey = "some"
secretKey = "s"
publish = ["mine/**", "orders", "orders/eu"]
subscribe = ["mine/**", "orders", "orders/eu"]
serve = ["mine/**"]
request = ["mine/**"]

[[key]]
apiKey = "reader"
secretKey = "s"
subscribe = ["mine/**"]
"""


@pytest.fixture
async def door(tmp_path):
    (tmp_path / "keys.toml").write_text(KEYS)
    (tmp_path / "keys.toml").chmod(0o600)
    async with doors.opened(keys=tmp_path / "keys.toml") as opened:
        yield opened


class Signer(doors.Ws):
    """A client that signs what it sends."""

    key = "some"

    async def send(self, message):
        await self.socket.send_str(json.dumps(signed(doors.formed(self.form, message), self.key, "s")))


@asynccontextmanager
async def signer(door, form="flat", key="some"):
    async with door.session.ws_connect(door.url + "/", max_msg_size=0) as socket:
        ws = Signer(socket, form)
        ws.key = key
        yield ws


@pytest.mark.parametrize(
    "request_",
    [
        {"cmd": "pub", "body": 1},
        {"cmd": "pub", "body": 1, "ack": False, "method": "m"},
        {"cmd": "sub", "channel": "C"},
        {"cmd": "take", "channel": "C"},
        {"cmd": "create"},
        {"cmd": "create", "channel": "C", "offset": 0},
        {"cmd": "remove"},
        {"cmd": "remove", "channel": "C"},
        {"cmd": "query"},
        {"cmd": "query", "channel": "C"},
        {"cmd": "bind", "body": [{"url": "/mine/x"}]},
    ],
    ids=json.dumps,
)
async def test_whether_it_is_there_is_not_told(door, form, request_):
    """One who may not use a queue learns nothing of it."""
    request_ = request_ | {"mq": "theirs"}
    if form == "headers" and "method" in request_:
        request_["url"] = "/theirs/m"
    async with signer(door, form) as ws, signer(door, key="all") as owner:
        before = await ws.ask(**request_)
        await owner.done(cmd="create", mq="theirs", channel="C")
        after = await ws.ask(**request_)
        assert (before["status"], before["body"]) == (after["status"], after["body"])
        assert before["status"] == 403, before
        assert (await owner.done(cmd="query", mq="theirs"))["body"]["size"] == 0
        assert not door.server.services()


async def test_a_grant_of_one_topic_is_none_of_the_others_of_its_stream(door, form):
    await door.bus.create_stream("orders", ["orders/**"])
    await door.bus.create_channel("orders", "whole")
    await door.bus.create_channel("orders", "eu", topic="orders/eu")
    await door.bus.publish("orders/secret", "secret", durable=True)
    await door.bus.publish("orders/eu", "told", durable=True)
    async with signer(door, form) as ws, signer(door, form, key="all") as owner:
        for mq in ("orders", "orders/eu"):
            for asked in (
                {"cmd": "sub", "channel": "whole"},
                {"cmd": "take", "channel": "whole"},
                {"cmd": "query", "channel": "whole"},
                {"cmd": "query"},
                {"cmd": "remove"},
                {"cmd": "remove", "channel": "whole"},
                {"cmd": "create", "channel": "whole", "offset": 2},
                {"cmd": "create", "mqMask": 8},
            ):
                answer = await ws.ask(mq=mq, **asked)
                assert (answer["status"], "orders/**" in answer["body"]) == (403, True), (asked, answer)
        await ws.done(cmd="create", mq="orders/eu", channel="eu", offset=0)
        await ws.done(cmd="create", mq="orders/eu", channel="new", offset=0)
        for channel in ("eu", "new"):
            got = await ws.done(cmd="take", mq="orders/eu", channel=channel, window=9)
            assert [doors.flat(one)["body"] for one in got["body"]] == ["told"]
        got = await owner.done(cmd="take", mq="orders", channel="whole", window=9)
        assert [doors.flat(one)["body"] for one in got["body"]] == ["secret", "told"]


async def test_urls_are_topics_that_a_key_has_to_serve(door, form):
    async with signer(door, form) as ws:
        await ws.done(cmd="create", mq="mine/rpc", channel="mine/rpc")
        refused = await ws.ask(cmd="bind", mq="mine/rpc", body=[{"url": "/mine/x"}, {"url": "/bank/pay"}])
        assert (refused["status"], refused["body"]) == (403, "apiKey may not serve bank/pay")
        assert not door.server.services()
        await ws.done(cmd="bind", mq="mine/rpc", body=[{"url": "/mine/x"}])
        assert door.server.services() == ["mine/x"]


async def test_who_may_only_subscribe_is_no_service(door, form):
    async with signer(door, form, key="all") as owner, signer(door, form, key="reader") as ws:
        await owner.done(cmd="create", mq="mine/rpc", channel="mine/rpc")
        await ws.done(cmd="sub", mq="mine/rpc", channel="mine/rpc")
        assert not door.server.services()
        await owner.done(cmd="sub", mq="mine/rpc", channel="mine/rpc")
        assert door.server.services() == ["mine/rpc"]


async def test_calls_by_address_need_the_topic_and_not_its_arguments(tmp_path):
    (tmp_path / "keys.toml").write_text(KEYS.replace('request = ["mine/**"]', 'request = ["mine/plus", "bound/f"]'))
    async with (
        doors.opened(keys=tmp_path / "keys.toml") as door,
        signer(door, "headers") as ws,
        signer(door, key="all") as owner,
        door.bus.serve("mine/plus", lambda message: sum(map(int, message.json()))),
        door.bus.serve("theirs/plus", lambda message: 0),
    ):
        assert (await ws.done(url="/mine/plus/1/2"))["body"] == 3
        assert (await ws.ask(url="/theirs/plus/1/2"))["status"] == 403
        assert (await ws.ask(url="/mine"))["status"] == 403
        await owner.done(cmd="create", mq="Rpc", channel="C")
        await owner.done(cmd="sub", mq="Rpc", channel="C")
        await owner.done(cmd="bind", mq="Rpc", body=[{"url": "/bound/f"}, {"url": "/bound/g"}])
        assert (await ws.ask(url="/bound/g"))["body"] == "apiKey may not request bound/g"
        asked = asyncio.ensure_future(ws.done(url="/bound/f", body=[1]))
        got = await owner.recv()
        await owner.send({"cmd": "route", "recver": got["sender"], "id": got["id"], "body": "done"})
        assert (await asked)["body"] == "done"


@pytest.mark.parametrize("number", ["1e21", "1E-7", "0.10", "100000000000000000000000", "-0"])
async def test_numbers_are_verified_as_they_were_written(door, form, number):
    """JavaScript, Java and Python write them differently, and each signs what it has written."""
    import hmac

    async with signer(door, form, key="all") as ws:
        await ws.done(cmd="create", mq="Q", channel="C")
        if form == "flat":
            text = f'{{"apiKey":"all","body":{number},"cmd":"pub","id":"1","mq":"Q"}}'
            sent = text[:-1] + ',"signature":"%s"}'
        else:
            text = f'{{"body":{number},"headers":{{"apiKey":"all","cmd":"pub","id":"1","mq":"Q"}}}}'
            sent = text[:-2] + ',"signature":"%s"}}'
        made = sent % hmac.digest(b"s", text.encode(), "sha256").hex()
        await ws.socket.send_str(made)
        assert (await ws.recv())["status"] == 200
        async with door.session.post(door.url, data=made) as response:
            assert response.status == 200
        await ws.socket.send_str(made.replace(number, "7"))
        assert (await ws.recv())["status"] == 403


def test_what_is_refused_is_counted():
    guard = Guard(object())
    key = Key("k", publish=("orders/**",))
    guard.demand(key, "publish", "orders/1")
    guard.demand(key, "manage", "orders/1")
    assert guard.refused == 0
    with pytest.raises(Refused, match="apiKey may not publish payments") as error:
        guard.demand(key, "publish", "payments")
    assert (error.value.status, guard.refused) == (403, 1)


def headed(key, cmd, topic=None, body=None, **more):
    """What a request at an address of its own signs, and the headers that it sends."""
    request = {"headers": {"cmd": cmd} | ({"mq": topic} if topic else {}) | more}
    if body is not None:
        request["body"] = body
    return {name: value for name, value in signed(request, key, "s")["headers"].items() if name not in {"cmd", "mq"}}


async def test_pages_are_signed_by_headers_or_query(door):
    for path, cmd in (("/services", "services"), ("/asyncapi.json", "asyncapi")):
        assert (await door.http.get(path))[0] == 403
        said = headed("reader", cmd, timestamp=str(int(time.time())))
        assert (await door.http.get(path, headers=said))[0] == 200
        assert (await door.http.get(path, params=said))[0] == 200
        assert (await door.http.get(path, headers=headed("reader", "other")))[0] == 403
    assert (await door.http.get("/openapi.json"))[0] == 200


async def test_events_are_signed_by_headers_or_query(door):
    event = json.dumps(
        {"specversion": "1.0", "id": "e", "source": "/s", "type": "t", "data": "grüße"}, ensure_ascii=False
    )
    kind = {"Content-Type": "application/cloudevents+json"}

    async def post(topic, said, data=event, **more):
        async with door.session.post(
            f"{door.url}/events/{topic}", data=data.encode(), headers=kind | said, **more
        ) as got:
            return got.status, await got.json()

    async with door.bus.subscribe("mine/e") as found:
        assert await post("mine/e", {}) == (403, {"error": "missing apiKey in request"})
        assert await post("mine/e", headed("some", "publish", "mine/e", event)) == (200, {"published": 1})
        assert (await post("mine/e", {}, params=headed("some", "publish", "mine/e", event)))[0] == 200
        tampered = event.replace("grüße", "gruss")
        assert await post("mine/e", headed("some", "publish", "mine/e", event), tampered) == (
            403,
            {"error": "signature mismatched"},
        )
        assert (await post("mine/f", headed("some", "publish", "mine/e", event)))[0] == 403
        refused = await post("theirs", headed("some", "publish", "theirs", event))
        assert refused == (403, {"error": "apiKey may not publish theirs"})
        assert [one.json() for one in await found.take(9, timeout=5)] == ["grüße", "grüße"]
    params = {"max": "1", "wait": "0"}
    for said, status in (
        ({}, 403),
        (headed("some", "subscribe", "mine/**"), 200),
        (headed("some", "subscribe", "**"), 403),
    ):
        async with door.session.get(f"{door.url}/events/mine/**", params=params, headers=said) as response:
            assert response.status == status


async def test_what_an_event_is_and_where_it_goes_is_signed(door):
    """In binary mode the attributes are headers, the topic among them."""
    attributes = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t", "ce-subject": "mine/a"}

    async def post(said, data):
        async with door.session.post(door.url + "/events", data=data, headers=said) as got:
            return got.status

    for data in ("text", b"\xff\xfe"):
        kind = {"Content-Type": "application/octet-stream"}
        said = headed("some", "publish", body=data, **attributes)
        assert await post(said | kind, data) == 200
        assert await post(said | kind | {"ce-subject": "mine/b"}, data) == 403
        assert await post(said | kind, b"\xfe\xff") == 403
    batch = json.dumps(
        [
            {"specversion": "1.0", "id": topic, "source": "/s", "type": "t", "subject": topic}
            for topic in ("mine/a", "mine/b", "theirs")
        ]
    )
    kind = {"Content-Type": "application/cloudevents-batch+json"}
    async with door.bus.subscribe("**") as found:
        assert await post(headed("some", "publish", body=batch) | kind, batch) == 403
        batch = batch.replace("theirs", "mine/c")
        assert await post(headed("some", "publish", body=batch) | kind, batch) == 200
        assert [(await found.recv(5)).topic for _ in range(3)] == ["mine/a", "mine/b", "mine/c"]


async def test_addresses_are_signed(door):
    """As a flat message whose values are texts, as one with a URL, or as the call that a path is."""
    asked = {"cmd": "create", "mq": "mine/q", "channel": "C"}
    assert (await door.http.get("/", params=asked))[0] == 403
    said = signed(asked, "some", "s")
    assert (await door.http.get("/", params=said))[0] == 200
    assert (await door.http.get("/", params=said | {"mq": "mine/r"}))[0] == 403
    async with door.bus.serve("mine/plus", lambda message: sum(map(int, message.json()))):
        call = {"ack": False, "mq": "mine", "module": "plus", "method": "index", "params": []}
        said = {name: value for name, value in signed(call, "some", "s").items() if name in {"apiKey", "signature"}}
        assert (await door.http.call("/mine/plus", params=said))[1] == 0
        assert (await door.http.call("/mine/plus/1", params=said))[0] == 403
        call = {"headers": {"cmd": "pub", "ack": "false"}, "url": "/mine/plus/4/5", "method": "GET"}
        said = signed(call, "some", "s")["headers"]
        async with door.session.get(door.url + "/mine/plus/4/5", headers=said) as response:
            assert (response.status, await response.text()) == (200, "9")
        for method, path in (("GET", "/mine/plus/4/6"), ("POST", "/mine/plus/4/5"), ("GET", "/mine/plus/4/5?x=1")):
            async with door.session.request(method, door.url + path, headers=said) as response:
                assert (response.status, await response.text()) == (403, "signature mismatched")


async def test_bytes_are_signed(door):
    await door.http.get("/", params=signed({"cmd": "create", "mq": "mine/q", "channel": "C"}, "some", "s"))
    said = signed({"headers": {"cmd": "pub", "mq": "mine/q"}, "body": b"\x00\xff"}, "some", "s")["headers"]
    said["Content-Type"] = "application/octet-stream"
    for data, status in ((b"\x00\xff", 200), (b"\x00\xfe", 403)):
        async with door.session.post(door.url, data=data, headers=said) as response:
            assert response.status == status
