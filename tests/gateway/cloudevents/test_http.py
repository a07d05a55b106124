"""CloudEvents over HTTP, against a real bus: published, stored, streamed, taken in batches, refused."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

import busway
from busway.gateway.cloudevents import http as events_http
from busway.gateway.cloudevents.event import BATCH, STRUCTURED, Event, decode, to_batch, to_binary, to_json
from busway.gateway.json.statuses import Refused

EVENT = Event("1", "/shop", "order.placed", b'{"total":5}', "orders/7", extensions={"venue": "krk"})


@asynccontextmanager
async def door(**more):
    async with busway.serve() as server, server.connect(name="native") as bus:
        app = web.Application()
        app.add_routes(events_http.routes(app, server.connect, **more))
        async with TestClient(TestServer(app)) as http:
            yield http, bus


async def post(http, path, event=EVENT, **more):
    async with http.post(path, data=to_json(event), headers={"Content-Type": STRUCTURED}, **more) as response:
        return response.status, await response.json()


async def test_events_become_messages():
    async with door() as (http, bus), bus.subscribe("orders/*", where={"venue": "krk"}) as orders:
        assert await post(http, "/events/orders/1") == (200, {"published": 1})
        assert await post(http, "/events") == (200, {"published": 1})
        headers, body = to_binary(EVENT)
        async with http.post("/events/orders/2", data=body, headers=headers) as response:
            assert response.status == 200
        async with http.post("/events", data=to_batch([EVENT] * 2), headers={"Content-Type": BATCH}) as response:
            assert await response.json() == {"published": 2}
        got = [await orders.recv(5) for _ in range(5)]
    assert [message.topic for message in got] == ["orders/1", "orders/7", "orders/2", "orders/7", "orders/7"]
    assert {message.payload for message in got} == {b'{"total":5}'}
    assert {message.fields["ce-type"] for message in got} == {"order.placed"}
    assert got[0].fields["ce-subject"] == "orders/7"


async def test_stored_events_tell_where():
    async with door() as (http, bus):
        status, body = await post(http, "/events/audit/login?durable=1")
        assert status == 200
        place = busway.Position.parse(body["positions"][0])
        async with bus.subscribe("audit/*", since="all") as stored:
            message = await stored.recv(5)
        assert (message.position.offset, message.position.stream) == (place.offset, place.stream)


async def test_a_batch_with_a_wrong_event_publishes_none():
    async with door() as (http, bus), bus.subscribe("**") as all_of_it:
        wrong = to_batch([EVENT]).removesuffix(b"]") + b',{"id":"2"}]'
        async with http.post("/events", data=wrong, headers={"Content-Type": BATCH}) as response:
            assert response.status == 400
            assert "event 2 of 2" in (await response.json())["error"]
        await bus.publish("end", b"")
        assert (await all_of_it.recv(5)).topic == "end"


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/events/a//b", 400, "empty segment"),
        ("/events/a%0Ab", 400, "control character"),
        ("/events/$bus/info", 403, "reserved|belong"),
        ("/events/" + "x" * 2000, 413, "1024"),
        ("/events/a?durable=maybe", 400, "durable must be 0 or 1"),
    ],
)
async def test_what_cannot_be_published(path, status, told):
    async with door() as (http, _):
        got, body = await post(http, path)
        assert got == status
        assert any(one in body["error"] for one in told.split("|"))


async def test_formats_that_are_not_spoken():
    async with door() as (http, _):
        headers = {"Content-Type": "application/cloudevents+avro"}
        async with http.post("/events/a", data=b"x", headers=headers) as response:
            assert response.status == 415
        async with http.post("/events/a", data=b"x") as response:
            assert response.status == 400


async def test_a_batch_of_what_is_stored_and_on_from_there():
    async with door() as (http, bus):
        for number in range(5):
            await bus.publish("audit/x", str(number), durable=True)
        seen, since = [], "all"
        for _ in range(3):
            async with http.get("/events/audit/*", params={"since": since, "max": "2", "wait": "5"}) as response:
                assert response.content_type == BATCH
                events = decode(response.headers, await response.read())
                assert 1 <= len(events) <= 2
                seen += [event.data for event in events]
                since = response.headers[events_http.POSITION]
            if len(seen) == 5:
                break
        assert seen == [b"0", b"1", b"2", b"3", b"4"]
        async with http.get("/events/audit/*", params={"since": since, "wait": "0"}) as response:
            assert await response.json(content_type=None) == []


async def test_a_batch_waits_for_the_first_event():
    async with door() as (http, bus):
        waiting = asyncio.create_task(http.get("/events/a/**?wait=20"))
        try:
            async with asyncio.timeout(20):
                while not waiting.done():
                    await bus.publish("a/b", b"1")
                    await asyncio.sleep(0.001)
        finally:
            response = await waiting
        events = decode(response.headers, await response.read())
        assert {event.subject for event in events} == {"a/b"}
        assert {event.source for event in events} == {"native"}


class Stream:
    """A reader of server-sent events."""

    def __init__(self, response):
        self.response = response

    async def next(self):
        """The fields of the next event; comments are left out."""
        found = {}
        while True:
            line = (await asyncio.wait_for(self.response.content.readline(), 10)).decode()
            if not line:
                raise EOFError
            if line == "\n":
                if found:
                    return found
            elif not line.startswith(":"):
                name, _, value = line.rstrip("\n").partition(": ")
                found[name] = found[name] + "\n" + value if name in found else value


async def test_live_events_as_they_come():
    async with door() as (http, bus), http.get("/events/price/*") as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        assert await response.content.readline() == b": ready\n"
        stream = Stream(response)
        await bus.publish("price/eur", b'{"a":\n1}', fields={"venue": "krk"})
        found = await stream.next()
        event = json.loads(found["data"])
        assert (event["subject"], event["data"], event["venue"]) == ("price/eur", {"a": 1}, "krk")
        assert "id" not in found
        await bus.publish("price/usd", b"\xff")
        assert json.loads((await stream.next())["data"])["data_base64"] == "/w=="


async def test_a_stream_goes_on_where_it_was():
    async with door() as (http, bus):
        for number in range(3):
            await bus.publish("audit", str(number), durable=True)
        async with http.get("/events/audit?since=all") as response:
            stream = Stream(response)
            found, seen = {}, []
            while "id" not in found or len(seen) < 3:
                found = await stream.next()
                seen.append(json.loads(found["data"])["data"])
            assert seen == [0, 1, 2]
        await bus.publish("audit", "3", durable=True)
        async with http.get("/events/audit", headers={"Last-Event-ID": found["id"]}) as response:
            assert json.loads((await Stream(response).next())["data"])["data"] == 3


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("since=yesterday", "since"),
        ("since=2026-13-05T00:00:00Z", "not a time"),
        ("since=abc:1:x", "not a position"),
        ("max=0", "max must be"),
        ("max=1e3", "max must be"),
        ("max=10001", "max must be"),
        ("wait=-1", "wait must be"),
        ("wait=nan", "wait must be"),
        ("wait=301", "wait must be"),
    ],
)
async def test_questions_that_cannot_be_answered(query, told):
    async with door() as (http, _), http.get(f"/events/a?{query}") as response:
        assert response.status == 400
        assert told in (await response.json())["error"]


async def test_times_and_durations_as_since():
    async with door() as (http, bus):
        await bus.publish("audit", b"1", durable=True)
        for since in ("2020-01-01T00:00:00Z", "2020-01-01T00:00:00+01:00", "1h", "all"):
            async with http.get(f"/events/audit?since={since}&wait=5") as response:
                assert len(await response.json(content_type=None)) == 1, since


async def test_who_may_not():
    asked = []

    async def allow(request, verb, topics, *, stored):
        (topic,) = topics
        asked.append((verb, topic))
        if topic.startswith("secret"):
            raise Refused(403, f"not {topic}")

    async with door(allow=allow) as (http, _):
        assert await post(http, "/events/secret/a") == (403, {"error": "not secret/a"})
        async with http.get("/events/secret/**") as response:
            assert response.status == 403
        assert (await post(http, "/events"))[0] == 200
        assert asked == [("publish", "secret/a"), ("subscribe", "secret/**"), ("publish", "orders/7")]


async def test_a_stream_ends_with_the_bus():
    async with busway.serve() as server:
        app = web.Application()
        app.add_routes(events_http.routes(app, lambda: server.connect(reconnect=None)))
        async with TestClient(TestServer(app)) as http, http.get("/events/a") as response:
            await response.content.readline()
            await server.stop()
            assert (await Stream(response).next())["event"] == "error"


@asynccontextmanager
async def site(server, **more):
    """A real listener: the test client's cancels handlers whose client has gone, which is no setting of its own."""
    app = web.Application()
    app.add_routes(events_http.routes(app, server.connect, **more))
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0]
    finally:
        await runner.cleanup()


async def nobody_is_left(server, do=None):
    async with asyncio.timeout(20):
        while server.stats()["subscriptions"]:
            if do is not None:
                await do()
            await asyncio.sleep(0.001)


async def test_a_reader_that_goes_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(events_http, "_LOOK", 0.01)
    monkeypatch.setattr(events_http, "_KEEPALIVE", 1e9)  # nothing is written that would tell
    async with busway.serve() as server, site(server) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /events/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b": ready")
        assert server.stats()["subscriptions"] == 1
        writer.close()
        await nobody_is_left(server)


async def test_a_reader_that_takes_nothing_is_disconnected():
    async with busway.serve() as server, site(server, stall=0.05) as address, server.connect() as bus:
        reader, writer = await asyncio.open_connection(*address, limit=1024)
        writer.write(b"GET /events/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b": ready")
        await nobody_is_left(server, lambda: bus.publish("a", b"x" * 1_000_000))
        writer.close()


async def test_a_slow_reader_is_told_what_it_missed(monkeypatch):
    monkeypatch.setattr(events_http, "_LIMIT", 10)
    async with door() as (http, bus), http.get("/events/a") as response:
        await response.content.readline()
        for number in range(1000):  # no await gives way to the reader
            await bus.publish("a", str(number))
        stream, seen, missed = Stream(response), [], 0
        while not seen or seen[-1] != 999:
            found = await stream.next()
            if found.get("event") == "missed":
                missed += int(found["data"])
            else:
                seen.append(json.loads(found["data"])["data"])
        assert missed > 0
        assert len(seen) + missed == 1000


class Trickle:
    """A subscription whose messages come one by one, each a moment after the one before."""

    position = ""

    def __init__(self, messages):
        self.messages = messages
        self.asked = []

    async def take(self, most, timeout):
        self.asked.append((most, timeout))
        if not self.messages or not timeout:
            raise busway.Timeout("nothing arrived")
        return [self.messages.pop(0)]


@pytest.mark.parametrize(("most", "count"), [(3, 3), (2, 2), (10, 5)])
async def test_a_batch_takes_what_follows_within_a_moment(most, count):
    async with door() as (_, bus), bus.subscribe("a") as messages:
        for number in range(5):
            await bus.publish("a", str(number))
        trickle = Trickle([await messages.recv() for _ in range(5)])
        response = await events_http._batch(trickle, most, 30.0)
        assert [event["data"] for event in json.loads(response.body)] == list(range(count))
        assert trickle.asked[0] == (most, 30.0)
        assert all(0 < timeout < 1 for _, timeout in trickle.asked[1:])
        assert not json.loads((await events_http._batch(Trickle([]), most, 0.0)).body)
