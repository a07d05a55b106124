"""Every request and response of the protocol's document, in both forms, over a WebSocket, in the body of an HTTP request, and in its address or headers."""

import json
from typing import Any

import pytest

import busway
from tests.support import door as doors

ID = "the id"
ANY = object()
"""Whatever it is, it is there."""

# A step is a request and the status and body of its answer. `{type}` is the type of the queue.
CREATE = {"cmd": "create", "mq": "MyMQ", "channel": "MyChannel"}
STORY: list[tuple[str, list[tuple[dict[str, Any], int, Any]]]] = [
    (
        "create a queue, and again",
        [
            ({"cmd": "create", "mq": "MyMQ"}, 200, "OK, CREATE (mq=MyMQ)"),
            ({"cmd": "create", "mq": "MyMQ"}, 200, "OK, CREATE (mq=MyMQ)"),
            (CREATE, 200, "OK, CREATE (mq=MyMQ,channel=MyChannel)"),
        ],
    ),
    ("create, both at once", [(CREATE, 200, "OK, CREATE (mq=MyMQ,channel=MyChannel)")]),
    ("a type that isn't one", [({"cmd": "create", "mq": "MyMQ", "mqType": "tape"}, 500, "mqType(tape) Not Support")]),
    (
        "types",
        [
            ({"cmd": "create", "mq": f"Q-{kind}", "mqType": kind}, 200, f"OK, CREATE (mq=Q-{kind})")
            for kind in ("memory", "disk", "db")
        ],
    ),
    (
        "another type than it has",
        [
            ({"cmd": "create", "mq": "MyMQ", "mqType": "disk"}, 200, "OK, CREATE (mq=MyMQ)"),
            (
                {"cmd": "create", "mq": "MyMQ", "mqType": "memory"},
                400,
                "MQ(MyMQ) has the type disk; the type of a queue can't change",
            ),
            ({"cmd": "create", "mq": "MyMQ"}, 200, "OK, CREATE (mq=MyMQ)"),
        ],
    ),
    (
        "remove, also what isn't there",
        [
            (CREATE, 200, ANY),
            ({"cmd": "remove", "mq": "MyMQ", "channel": "MyChannel"}, 200, "OK, REMOVE (mq=MyMQ,channel=MyChannel)"),
            ({"cmd": "remove", "mq": "MyMQ", "channel": "MyChannel"}, 200, "OK, REMOVE (mq=MyMQ,channel=MyChannel)"),
            ({"cmd": "remove", "mq": "MyMQ"}, 200, "OK, REMOVE (mq=MyMQ)"),
            ({"cmd": "remove", "mq": "MyMQ"}, 200, "OK, REMOVE (mq=MyMQ)"),
            ({"cmd": "query", "mq": "MyMQ"}, 404, "MQ(MyMQ) Not Found"),
        ],
    ),
    (
        "publish and take",
        [
            (CREATE, 200, ANY),
            ({"cmd": "pub", "mq": "MyMQ", "body": "hello"}, 200, "OK, PUB (mq=MyMQ)"),
            ({"cmd": "take", "mq": "MyMQ", "channel": "MyChannel"}, 200, ["hello"]),
            ({"cmd": "take", "mq": "MyMQ", "channel": "MyChannel"}, 604, []),
        ],
    ),
    (
        "the case of a command",
        [
            ({"cmd": "CREATE", "mq": "MyMQ"}, 200, ANY),
            ({"cmd": "Pub", "mq": "MyMQ", "body": "x"}, 200, "OK, PUB (mq=MyMQ)"),
        ],
    ),
    (
        "take many",
        [
            (CREATE, 200, ANY),
            *[({"cmd": "pub", "mq": "MyMQ", "body": f"b{number}"}, 200, ANY) for number in range(5)],
            ({"cmd": "take", "mq": "MyMQ", "channel": "MyChannel", "window": 3}, 200, ["b0", "b1", "b2"]),
            ({"cmd": "take", "mq": "MyMQ", "channel": "MyChannel", "window": "0"}, 200, ["b3"]),
            ({"cmd": "take", "mq": "MyMQ", "channel": "MyChannel", "window": -1}, 200, ["b4"]),
            ({"cmd": "take", "mq": "MyMQ", "channel": "MyChannel", "window": "3"}, 604, []),
        ],
    ),
    (
        "what is not there",
        [
            ({"cmd": "pub", "mq": "MyMQ", "body": "x"}, 404, "MQ(MyMQ) Not Found"),
            ({"cmd": "take", "mq": "MyMQ", "channel": "C"}, 404, "MQ(MyMQ) Not Found"),
            ({"cmd": "query", "mq": "MyMQ"}, 404, "MQ(MyMQ) Not Found"),
            ({"cmd": "create", "mq": "MyMQ"}, 200, ANY),
            ({"cmd": "take", "mq": "MyMQ", "channel": "C"}, 404, "Channel(C) Not Found"),
            ({"cmd": "query", "mq": "MyMQ", "channel": "C"}, 404, "Channel(C) Not Found"),
            ({"cmd": "fly"}, 404, "Command(fly) Not Found"),
        ],
    ),
    (
        "what is missing",
        [
            ({"cmd": "pub", "body": "x"}, 400, "Missing mq field"),
            ({"cmd": "remove"}, 400, "Missing mq field"),
            ({"cmd": "query"}, 400, "Missing mq field"),
            ({"cmd": "take", "channel": "C"}, 400, "Missing mq field"),
            ({"cmd": "create", "mq": "MyMQ"}, 200, ANY),
            ({"cmd": "take", "mq": "MyMQ"}, 400, "Missing channel field"),
        ],
    ),
    (
        "a window that is no number",
        [
            (CREATE, 200, ANY),
            (
                {"cmd": "take", "mq": "MyMQ", "channel": "MyChannel", "window": "x"},
                400,
                "window must be a whole number",
            ),
        ],
    ),
    ("ping", [({"cmd": "ping", "id": "p"}, 200, "OK, PING")]),
    (
        "query",
        [
            (CREATE | {"mqMask": 4, "channelMask": 64, "topic": "abc"}, 200, ANY),
            ({"cmd": "pub", "mq": "MyMQ", "body": "x"}, 200, ANY),
            (
                {"cmd": "query", "mq": "MyMQ"},
                200,
                {
                    "name": "MyMQ",
                    "type": "disk",
                    "mask": 4,
                    "size": 1,
                    "channels": [{"name": "MyChannel", "mask": 64, "offset": 0, "filter": "abc"}],
                },
            ),
            (
                {"cmd": "query", "mq": "MyMQ", "channel": "MyChannel"},
                200,
                {"name": "MyChannel", "mask": 64, "offset": 0, "filter": "abc"},
            ),
        ],
    ),
    (
        "offset and checksum",
        [
            ({"cmd": "create", "mq": "MyMQ"}, 200, ANY),
            *[
                ({"cmd": "pub", "mq": "MyMQ", "body": f"b{number}", "id": f"m{number}"}, 200, ANY)
                for number in range(4)
            ],
            (CREATE | {"offset": 2}, 200, ANY),
            ({"cmd": "take", "mq": "MyMQ", "channel": "MyChannel", "window": 9}, 200, ["b2", "b3"]),
            (CREATE | {"offset": 1, "checksum": "m1"}, 200, ANY),
            ({"cmd": "take", "mq": "MyMQ", "channel": "MyChannel", "window": 9}, 200, ["b1", "b2", "b3"]),
            (
                CREATE | {"offset": 1, "checksum": "m2"},
                400,
                "checksum unmatched: offset 1 has no message with the id m2",
            ),
            (CREATE | {"offset": 99}, 400, "offset 99 is after the end of MQ, which is 4"),
            ({"cmd": "take", "mq": "MyMQ", "channel": "MyChannel", "window": 9}, 604, []),
        ],
    ),
    (
        "a new channel: of memory at the end, of others at the beginning",
        [
            ({"cmd": "create", "mq": "MyMQ"}, 200, ANY),
            ({"cmd": "create", "mq": "Disk", "mqType": "disk"}, 200, ANY),
            ({"cmd": "pub", "mq": "MyMQ", "body": "x"}, 200, ANY),
            ({"cmd": "pub", "mq": "Disk", "body": "x"}, 200, ANY),
            (CREATE, 200, ANY),
            ({"cmd": "create", "mq": "Disk", "channel": "C"}, 200, ANY),
            ({"cmd": "take", "mq": "MyMQ", "channel": "MyChannel"}, 604, []),
            ({"cmd": "take", "mq": "Disk", "channel": "C"}, 200, ["x"]),
        ],
    ),
    (
        "a filter of the channel",
        [
            (CREATE | {"topic": "a.*"}, 200, ANY),
            ({"cmd": "pub", "mq": "MyMQ", "body": "1", "topic": "a.x"}, 200, ANY),
            ({"cmd": "pub", "mq": "MyMQ", "body": "2", "topic": "b"}, 200, ANY),
            ({"cmd": "pub", "mq": "MyMQ", "body": "3"}, 200, ANY),
            ({"cmd": "pub", "mq": "MyMQ", "body": "4", "topic": "a.y"}, 200, ANY),
            ({"cmd": "take", "mq": "MyMQ", "channel": "MyChannel", "window": 9}, 200, ["1", "4"]),
        ],
    ),
    (
        "pause",
        [
            (CREATE | {"channelMask": 8}, 200, ANY),
            ({"cmd": "pub", "mq": "MyMQ", "body": "1"}, 200, ANY),
            ({"cmd": "take", "mq": "MyMQ", "channel": "MyChannel"}, 604, []),
            (CREATE | {"channelMask": 0}, 200, ANY),
            ({"cmd": "take", "mq": "MyMQ", "channel": "MyChannel"}, 200, ["1"]),
            (CREATE | {"mqMask": 8}, 200, ANY),
            ({"cmd": "pub", "mq": "MyMQ", "body": "2"}, 200, ANY),
            ({"cmd": "take", "mq": "MyMQ", "channel": "MyChannel"}, 604, []),
            (CREATE | {"mqMask": 0}, 200, ANY),
            ({"cmd": "take", "mq": "MyMQ", "channel": "MyChannel"}, 200, ["2"]),
        ],
    ),
    (
        "names with slashes and others",
        [
            (
                {"cmd": "create", "mq": "a/b/Bücher", "channel": "ch/ännel"},
                200,
                "OK, CREATE (mq=a/b/Bücher,channel=ch/ännel)",
            ),
            ({"cmd": "pub", "mq": "a/b/Bücher", "body": "x"}, 200, "OK, PUB (mq=a/b/Bücher)"),
            ({"cmd": "take", "mq": "a/b/Bücher", "channel": "ch/ännel"}, 200, ["x"]),
            (
                {"cmd": "query", "mq": "a/b/Bücher", "channel": "ch/ännel"},
                200,
                {"name": "ch/ännel", "mask": 0, "offset": 1},
            ),
        ],
    ),
    ("binding what isn't there", [({"cmd": "bind", "mq": "MyMQ", "body": []}, 404, "MQ(MyMQ) Not Found")]),
    (
        "routing to nobody",
        [({"cmd": "route", "recver": "nobody", "ack": True, "body": 1}, 404, "Target=nobody Not Found")],
    ),
    (
        "calling nobody",
        [({"method": "plus", "module": "example", "params": [1, 2]}, 404, "module=example, method=plus Not Found")],
    ),
]
STORIES = [pytest.param(steps, id=name) for name, steps in STORY]


def check(answer: dict[str, Any], status: int, body: Any, ident: Any) -> None:
    assert answer["status"] == status, answer
    assert answer["id"] == ident
    if body is ANY:
        return
    found = answer["body"]
    if isinstance(body, list) and body and isinstance(body[0], str):
        found = [one["body"] for one in found]
    assert found == body


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize("steps", STORIES)
async def test_over_a_websocket(door, form, steps, binary):
    if form == "headers" and "method" in steps[0][0]:
        steps = [({"url": "/example/plus", "body": [1, 2]}, 404, "/example/plus Not Found")]
    async with door.ws(form, binary=binary) as ws:
        for number, (request, status, body) in enumerate(steps):
            ident = request.get("id", f"{ID} {number}")
            check(await ws.ask(**({"id": ident} | request)), status, body, ident)


@pytest.mark.parametrize("steps", STORIES)
async def test_in_the_body_of_a_request(door, form, steps):
    if form == "headers" and "method" in steps[0][0]:
        steps = [({"url": "/example/plus", "body": [1, 2]}, 404, "/example/plus Not Found")]
    for number, (request, status, body) in enumerate(steps):
        ident = request.get("id", f"{ID} {number}")
        got, raw = await door.http.post({"id": ident} | request, form)
        assert got == status
        assert ("headers" in raw) == (form == "headers")
        check(doors.flat(raw), status, body, ident)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.parametrize(
    "steps", [one for one in STORIES if one.id not in {"calling nobody", "binding what isn't there"}]
)
async def test_in_the_address(door, steps):
    for number, (request, status, body) in enumerate(steps):
        ident = request.get("id", f"{ID} {number}")
        asked = {key: as_text(value) for key, value in ({"id": ident} | request).items()}
        got, raw = await door.http.get("/", params=asked)
        assert got == status
        check(raw, status, body, ident)


PLAIN = [
    one
    for one in STORIES
    if one.id not in {"calling nobody", "binding what isn't there", "names with slashes and others"}
]


@pytest.mark.parametrize("steps", PLAIN)
async def test_in_headers(door, steps):
    """The reply has its control fields in headers, and only the body as body."""
    for number, (request, status, body) in enumerate(steps):
        ident = request.get("id", f"{ID} {number}")
        names = {"recver": "target", "topic": "tag" if request["cmd"] == "pub" else "filter"}
        asked = {
            names.get(key, key): as_text(value) for key, value in ({"id": ident} | request).items() if key != "body"
        }
        sent = request.get("body")
        async with door.session.post(
            door.url + "/",
            headers=asked | {"Content-Type": "text/plain"},
            data=as_text(sent) if sent is not None else None,
        ) as response:
            text = await response.text()
            assert (response.status, response.headers["id"]) == (status, ident), text
            assert response.content_type == (
                "application/json" if not isinstance(body, str) and body is not ANY else "text/plain"
            )
        if isinstance(body, str):
            assert text == body
        elif body is not ANY:
            found = json.loads(text)
            assert ([one["body"] for one in found] if isinstance(body, list) and body else found) == body
            if request["cmd"] == "take":
                assert (response.headers["mq"], response.headers["channel"]) == (request["mq"], request["channel"])


async def test_what_is_missing_for_create(door):
    async with door.ws("flat") as ws, door.ws("headers") as headed:
        assert (await ws.ask(cmd="create"))["body"] == "Missing mq field"
        assert (await headed.ask(cmd="create"))["body"] == "create command, missing mq field"
        assert (await ws.ask(mq="x"))["body"] == "cmd key required"
        assert (await headed.ask(mq="x"))["status"] == 400


async def test_an_id_is_given_if_there_is_none(door, form):
    async with door.ws(form) as ws:
        first, second = await ws.ask(cmd="remove", mq="Q"), await ws.ask(cmd="remove", mq="Q")
        assert len(first["id"]) == 36
        assert first["id"] != second["id"]


async def test_numbers_as_ids(door, form):
    async with door.ws(form) as ws:
        assert (await ws.ask(cmd="ping", id=7))["id"] == 7
        await ws.done(cmd="create", mq="Q", channel="C")
        await ws.done(cmd="pub", mq="Q", id=8, body="x")
        answer = await ws.done(cmd="take", mq="Q", channel="C", id=9)
        assert flat_id(answer["body"][0]) == 8


def flat_id(message):
    return message.get("headers", message)["id"]


async def test_no_data_has_its_own_status_line(door):
    async with door.session.get(door.url + "/?cmd=create&mq=Q&channel=C"):
        pass
    async with door.session.get(door.url + "/?cmd=take&mq=Q&channel=C") as response:
        assert (response.status, response.reason) == (604, "No Data")
        assert response.content_type == "application/json"


@pytest.mark.parametrize("reopened", ["disk", "db"])
async def test_queues_channels_and_masks_outlive_the_server(tmp_path, reopened):
    async with doors.opened(tmp_path) as first, first.ws() as ws:
        await ws.done(cmd="create", mq="a/Q", mqType=reopened, mqMask=4, channel="C D", channelMask=16, topic="x")
        for number in range(3):
            await ws.done(cmd="pub", mq="a/Q", body=number, topic="x")
        assert [one["body"] for one in (await ws.done(cmd="take", mq="a/Q", channel="C D"))["body"]] == [0]
    async with doors.opened(tmp_path) as again, again.ws() as ws:
        found = (await ws.done(cmd="query", mq="a/Q"))["body"]
        assert found == {
            "name": "a/Q",
            "type": reopened,
            "mask": 4,
            "size": 3,
            "channels": [{"name": "C D", "mask": 16, "offset": 1, "filter": "x"}],
        }
        assert [one["body"] for one in (await ws.done(cmd="take", mq="a/Q", channel="C D", window=9))["body"]] == [1, 2]


async def test_a_queue_without_a_type_is_on_disk(tmp_path):
    """If the server has a data folder. Its new channels begin with the next message, as they do for zbus."""
    async with doors.opened(tmp_path) as first, first.ws() as ws:
        for name, more in (("Q", {}), ("N", {"mqType": None}), ("M", {"mqType": "memory"}), ("D", {"mqType": "disk"})):
            await ws.done(cmd="create", mq=name, **more)
            await ws.done(cmd="pub", mq=name, body="before")
            await ws.done(cmd="create", mq=name, channel="C")
            await ws.done(cmd="pub", mq=name, body="after")
        await ws.done(cmd="create", mq="Q")  # again, as clients do when they come back
        types = {name: (await ws.done(cmd="query", mq=name))["body"]["type"] for name in "QNMD"}
        assert types == {"Q": "disk", "N": "disk", "M": "memory", "D": "disk"}
        stream = await first.bus.stream("Q")
        assert ((await stream.info()).max_age, (await stream.info()).max_count) == (None, None)
    async with doors.opened(tmp_path) as again, again.ws() as ws:
        for name in "QN":
            await ws.done(cmd="create", mq=name, channel="C")
            assert [one["body"] for one in (await ws.done(cmd="take", mq=name, channel="C", window=9))["body"]] == [
                "after"
            ]
            await ws.done(cmd="create", mq=name, channel="E")
            assert (await ws.ask(cmd="take", mq=name, channel="E"))["status"] == 604
        found = await ws.done(cmd="take", mq="D", channel="C", window=9)
        assert [one["body"] for one in found["body"]] == ["before", "after"]
        assert (await ws.ask(cmd="query", mq="M"))["status"] == 404


async def test_a_queue_without_a_type_is_in_memory_without_a_data_folder():
    async with doors.opened() as door, door.ws() as ws:
        await ws.done(cmd="create", mq="Q")
        assert (await ws.done(cmd="query", mq="Q"))["body"]["type"] == "memory"


async def test_a_queue_on_a_disk_with_too_little_space_refuses_messages(tmp_path, form):
    async with doors.opened(tmp_path, busway.Settings(min_free_disk=1 << 60)) as door, door.ws(form) as ws:
        await ws.done(cmd="create", mq="Q", channel="C")
        for ident in (
            "1",
            "2",
        ):  # the first message of a queue takes another way through the door than those that follow
            refused = await ws.ask(cmd="pub", mq="Q", body="x", id=ident)
            assert refused["status"] == 500
            assert "it keeps free" in refused["body"]
        await ws.done(cmd="create", mq="M", mqType="memory")
        await ws.done(cmd="pub", mq="M", body="x")


async def test_sub(door, form):
    """Its first message says whether it was done, those that follow are messages of the queue."""
    async with door.ws(form) as ws:
        for asked, status, body in (
            ({"channel": "MyChannel"}, 400, "Missing mq field"),
            ({"mq": "MyMQ"}, 400, "Missing channel field"),
            ({"mq": "MyMQ", "channel": "MyChannel"}, 404, "MQ(MyMQ) Not Found"),
        ):
            check(await ws.ask(cmd="sub", id=ID, **asked), status, body, ID)
        await ws.done(cmd="create", mq="MyMQ")
        check(await ws.ask(cmd="sub", id=ID, mq="MyMQ", channel="C"), 404, "Channel(C) Not Found", ID)
        await ws.done(**CREATE)
        answer = await ws.ask(cmd="sub", mq="MyMQ", channel="MyChannel", id=ID)
        check(answer, 200, "OK, SUB (mq=MyMQ,channel=MyChannel)", ID)
        assert set(answer) == {"id", "status", "body"}
        await ws.done(cmd="pub", mq="MyMQ", id="m", body={"a": 1})
        got = await ws.raw()
        head = got if form == "flat" else got["headers"]
        assert (head["mq"], head["channel"], head["id"], got["body"]) == ("MyMQ", "MyChannel", "m", {"a": 1})
        assert len(head["sender" if form == "flat" else "source"]) == 36
        assert not {"cmd", "status"} & {*head, *got}


async def test_paused_for_subscribers(door, form):
    async with door.ws(form) as ws:
        await ws.done(**CREATE)
        await ws.done(cmd="sub", mq="MyMQ", channel="MyChannel")
        for mask in ("channelMask", "mqMask"):
            await ws.done(**CREATE, **{mask: 8})
            await ws.done(cmd="pub", mq="MyMQ", body=mask)
            await ws.silent()
            await ws.send(CREATE | {mask: 0})
            got = [await ws.recv(), await ws.recv()]
            assert sorted(one["body"] for one in got) == sorted([mask, "OK, CREATE (mq=MyMQ,channel=MyChannel)"])


async def test_bind_and_the_rpc_of_the_document(door, form):
    """`{method, params, module, id}` and `{status, body, id}`; what a routed answer carries besides depends on the form."""
    async with door.ws(form) as server, door.ws("flat") as caller:
        await server.done(cmd="create", mq="MyRpc", channel="MyRpc")
        await server.done(cmd="sub", mq="MyRpc", channel="MyRpc")
        answer = await server.ask(cmd="bind", mq="MyRpc", id=ID, body=[{"url": "/example/plus", "mq": "MyRpc"}])
        check(answer, 200, "OK, BIND URL (mq=MyRpc)", ID)
        await caller.send({"method": "plus", "module": "example", "params": [1, 2], "id": ID})
        call = await server.recv()
        assert call["id"] == ID
        await server.send({"cmd": "route", "recver": call["sender"], "id": ID, "status": 500, "body": {"why": "x"}})
        got = await caller.recv()
        check(got, 500, {"why": "x"}, ID)
        assert {"recver", "sender"} <= got.keys()
    async with door.ws("headers") as server, door.ws("headers") as caller:
        await server.done(cmd="sub", mq="MyRpc", channel="MyRpc")
        await server.done(cmd="bind", mq="MyRpc", body=[{"url": "/example/plus"}])
        await caller.send({"url": "/example/plus", "body": [1, 2], "id": ID})
        call = await server.raw()
        assert (call["url"], call["body"]) == ("/example/plus", [1, 2])
        await server.send({"cmd": "route", "recver": call["headers"]["source"], "id": ID, "body": 3})
        assert await caller.raw() == {"headers": {"id": ID}, "status": 200, "body": 3}


async def test_an_offset_that_is_gone_is_the_oldest(tmp_path):
    async with doors.opened(memory_count=10) as door, door.ws() as ws:
        await ws.done(cmd="create", mq="MyMQ")
        for number in range(5000):
            await ws.send({"cmd": "pub", "mq": "MyMQ", "body": number, "ack": False})
        await ws.done(**CREATE, offset=0)
        got = (await ws.done(cmd="take", mq="MyMQ", channel="MyChannel"))["body"][0]
        assert got["body"] == got["offset"] > 0
        assert (await ws.done(cmd="query", mq="MyMQ"))["body"]["size"] < 5000
        gone = await ws.ask(**CREATE, offset=0, checksum="x")
        assert (gone["status"], gone["body"]) == (400, "checksum unmatched: offset 0 has no message with the id x")


async def test_the_address_alone(door):
    async with door.session.get(door.url + "/") as response:
        assert (response.status, response.content_type) == (200, "text/plain")  # for people; see test_strangers.py
    assert (await door.http.get("/?mq=x"))[0] == 400
    assert await door.http.call("/nobody/serves/this") == (404, "/nobody/serves/this Not Found", "text/plain")
    async with door.session.get(door.url + "/nobody/serves", headers={"cmd": "pub", "ack": "false"}) as response:
        assert (response.status, await response.text()) == (404, "/nobody/serves Not Found")
