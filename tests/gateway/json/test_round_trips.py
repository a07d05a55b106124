"""A message is the same through every pair of doors: JSON in both forms, HTTP, and the bus itself."""

import json

import pytest
from hypothesis import given, settings, strategies as st

from tests.support import door as doors
from tests.support.strength import examples

BODIES = ["hello", "", "123", "true", '{"a":1}', " x", "Zażółć 🐍", 0, -1.5, 12345678901234567890123, True, None, [], {"a": {"b": [None]}}, 'a\nb"c\\']  # fmt: skip


@pytest.mark.parametrize("to", doors.FORMS)
@pytest.mark.parametrize("mq", ["Q", "a/b", "Bücher/🐍", "x" * 100])
async def test_json_to_json_and_to_the_bus(door, form, to, mq):
    async with door.ws(form) as publisher, door.ws(to) as ws, door.bus.subscribe(mq) as native:
        await ws.done(cmd="create", mq=mq, channel="C")
        await ws.done(cmd="sub", mq=mq, channel="C")
        for number, body in enumerate(BODIES):
            await publisher.done(cmd="pub", mq=mq, id=f"m{number}", body=body, topic="t", n=number)
            got = await ws.recv()
            assert got.get("body") == body
            assert type(got.get("body")) is type(body)
            assert (got["mq"], got["id"], got["topic"], got["n"]) == (mq, f"m{number}", "t", number)
            message = await native.recv(5)
            assert message.topic == mq
            assert (message.fields["id"], message.fields["tag"], message.fields["n"]) == (f"m{number}", "t", number)
            assert message.fields["sender"] == got["sender"]
            if isinstance(body, str):
                assert message.text == body
            elif body is not None:
                assert message.json() == body


@pytest.mark.parametrize(
    ("payload", "body", "encoding"),
    [
        (b"plain", "plain", None),
        (b'{"a":[1.50,12345678901234567890123]}', {"a": [1.5, 12345678901234567890123]}, None),
        (b"{broken", "{broken", None),
        (b"12 apples", "12 apples", None),
        (b"\xff\x00", "/wA=", "base64"),
        (b"{\xff", "e/8=", "base64"),
        (b"", "", None),
    ],
)
async def test_the_bus_to_json(door, form, payload, body, encoding):
    async with door.ws(form) as ws:
        await ws.done(cmd="create", mq="Q", channel="C")
        await ws.done(cmd="sub", mq="Q", channel="C")
        place = await door.bus.publish("Q", payload, durable=True, fields={"venue": "krk", "deep": {"a": [1]}})
        got = await ws.recv()
        assert (got["body"], got.get("encoding")) == (body, encoding)
        assert (got["venue"], got["deep"], int(got["offset"])) == ("krk", {"a": [1]}, place.offset)
        assert (got["sender"], len(got["id"])) == ("native", 32)


async def test_json_to_the_bus_and_back(door, form):
    """What a native program reads and stores again, with its fields, is what was sent."""
    async with door.ws(form) as ws:
        await ws.done(cmd="create", mq="Q", channel="C")
        await ws.done(cmd="create", mq="R", channel="C")
        await ws.done(cmd="sub", mq="R", channel="C")
        async with door.bus.channel("Q", "native", start="first") as jobs:
            for body in BODIES:
                await ws.done(cmd="pub", mq="Q", body=body, id="same", extra={"x": 1})
                message = await jobs.recv(5)
                await message.ack()
                await door.bus.publish("R", message.payload, durable=True, fields=message.fields)
                got = await ws.recv()
                assert (got.get("body"), got["id"], got["extra"]) == (body, "same", {"x": 1})


async def test_channels_are_shared_by_both(door):
    async with door.ws() as ws:
        await ws.done(cmd="create", mq="Q", channel="C")
        async with door.bus.channel("Q", "C", window=0, create=False) as native:
            for number in range(4):
                await ws.done(cmd="pub", mq="Q", body=number)
            (message,) = await native.take(1, timeout=5)
            await message.ack()
            assert [one["body"] for one in (await ws.done(cmd="take", mq="Q", channel="C", window=2))["body"]] == [1, 2]
            (message,) = await native.take(1, timeout=5)
            assert message.json() == 3
            await message.ack()


async def test_a_stream_of_the_bus_is_a_queue(door, form):
    await door.bus.create_stream("orders", ["orders/**"])
    async with door.ws(form) as ws:
        await ws.done(cmd="create", mq="orders", channel="all")
        await ws.done(cmd="create", mq="orders/eu", channel="eu")
        await ws.done(cmd="pub", mq="orders/eu", body=1)
        await ws.done(cmd="pub", mq="orders/us", body=2)
        for channel, wanted in (("all", [1, 2]), ("eu", [1])):
            mq = "orders/eu" if channel == "eu" else "orders"
            answer = await ws.done(cmd="take", mq=mq, channel=channel, window=9)
            assert [doors.flat(one)["body"] for one in answer["body"]] == wanted
        assert (await ws.ask(cmd="remove", mq="orders/eu"))["status"] == 400
        await ws.done(cmd="remove", mq="orders")


async def test_bodies_of_http_requests(door):
    await door.http.get("/?cmd=create&mq=Q&channel=C")

    async def published(data, kind):
        head = {"cmd": "pub", "mq": "Q", "Content-Type": kind}
        async with door.session.post(door.url + "/", data=data, headers=head) as response:
            assert response.status == 200, await response.text()
        got = (await door.http.get("/?cmd=take&mq=Q&channel=C"))[1]["body"][0]
        return got["body"], got.get("encoding")

    assert await published("grüße".encode(), "text/plain") == ("grüße", None)
    assert await published(b'{"a":1}', "application/json") == ('{"a":1}', None)
    assert await published(b"\x00\x01", "application/octet-stream") == ("AAE=", "base64")
    import aiohttp

    form = aiohttp.FormData()
    form.add_field("name", "value")
    form.add_field("file", b"\x00", filename="a.bin", content_type="image/png")
    async with door.session.post(door.url + "/", data=form, headers={"cmd": "pub", "mq": "Q"}) as response:
        assert response.status == 200
    got = (await door.http.get("/?cmd=take&mq=Q&channel=C"))[1]["body"][0]["body"]
    assert got == {
        "attributes": {"name": "value"},
        "files": {"file": [{"fileName": "a.bin", "contentType": "image/png", "data": "AA=="}]},
    }
    async with door.session.post(door.url + "/?cmd=pub&mq=Q", data="in the body") as response:
        assert response.status == 200
    assert (await door.http.get("/?cmd=take&mq=Q&channel=C"))[1]["body"][0]["body"] == "in the body"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=examples(200))
@given(body=JSON)
def test_bodies_come_back(body):
    from busway.gateway.json import bodies, envelope

    payload, mark = bodies.payload_of(body)
    data = payload.encode() if isinstance(payload, str) else payload
    found, coded = bodies.body_of(data, mark)
    assert not coded
    back = None if found is envelope.UNSET else json.loads(envelope.encoded(found))
    assert back == body
    assert type(back) is type(body)


@settings(max_examples=examples(200))
@given(payload=st.binary(max_size=40), mark=st.sampled_from([None, "text", "none", "bytes", "params", 7]))
def test_any_payload_becomes_json(payload, mark):
    import base64

    from busway.gateway.json import bodies, envelope

    found, coded = bodies.body_of(payload, mark)
    if found is envelope.UNSET:
        assert (payload, mark) == (b"", "none")
        return
    back = json.loads(envelope.encoded({"body": found}))["body"]
    if coded:
        assert base64.b64decode(back) == payload
    elif not isinstance(back, str):
        assert back == json.loads(payload)


KEYS = st.sampled_from(["cmd", "mq", "id", "body", "ack", "channel", "window", "topic", "headers", "method", "params", "extra", "status", "offset"])  # fmt: skip


@settings(max_examples=examples(400))
@given(
    raw=JSON
    | st.dictionaries(KEYS, JSON, max_size=6)
    | st.fixed_dictionaries({"headers": st.dictionaries(KEYS, JSON, max_size=5)})
)
def test_any_json_is_a_request_or_refused(raw):
    from busway.gateway.json import envelope

    data = json.dumps(raw).encode()
    try:
        request = envelope.parse(data)
    except envelope.Malformed as error:
        assert error.status == 400
        return
    assert request.form == (envelope.HEADERS if isinstance(raw.get("headers"), dict) else envelope.FLAT)
    head = raw["headers"] if request.form == envelope.HEADERS else raw
    assert request.ident == head.get("id")
    for read in (request.text, request.number, request.seconds, lambda key: request.flag(key, True)):
        for key in ("mq", "window", "ack", "extra"):
            try:
                read(key)
            except envelope.Malformed as error:
                assert key in error.text
    answer = json.loads(envelope.answer(request.form, request.ident, 200, None))
    assert answer.get("headers", answer)["id"] == request.ident


ID = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@settings(max_examples=examples(300))
@given(body=JSON, ident=ID, mq=st.sampled_from(["Q", "a/b"]), space=st.booleans(), ack=st.booleans())
def test_the_short_way_stores_the_same_as_the_long_one(body, ident, mq, space, ack):
    import msgspec

    from busway.gateway.http import fast_publish
    from busway.gateway.json import envelope

    data = json.dumps(
        {"cmd": "pub", "mq": mq, "id": ident, "body": body, **({} if ack else {"ack": False})},
        separators=None if space else (",", ":"),
        ensure_ascii=space,
    ).encode()
    short = fast_publish.read(data, fast_publish.packed("somebody"))
    if short is None:
        return
    mq_, payload_, fields_, ident_, body_, ack_ = short
    assert ack_ is ack
    request = envelope.parse(data)
    payload, fields = envelope.stored(request, request.ident, "somebody")
    assert msgspec.msgpack.decode(fields_) == fields
    assert mq_ == mq
    assert json.loads(ident_) == ident
    long = payload.encode() if isinstance(payload, str) else payload
    mark = fields.get("body")
    assert payload_ == long or (mark is None and json.loads(payload_) == json.loads(long))
    tail = json.loads(b"{" + fast_publish.tail(fast_publish.sent_by("somebody"), ident_, 7, body_))
    assert tail == {"sender": "somebody", "id": ident, "offset": 7, "body": body}
