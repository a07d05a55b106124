"""Subscriptions of the JSON door: order, round robin, credit, filters, masks, and leaving subscribers."""

import asyncio
import json

import pytest

import busway
from tests.support import door as doors


async def made(ws, **more):
    await ws.done(**({"cmd": "create", "mq": "Q", "channel": "C"} | more))


async def bodies(ws, count):
    return [(await ws.recv())["body"] for _ in range(count)]


async def test_messages_follow_the_acknowledgement(door, form):
    async with door.ws(form) as ws:
        await made(ws)
        assert await ws.ask(cmd="sub", mq="Q", channel="C", id="s") == {
            "id": "s",
            "status": 200,
            "body": "OK, SUB (mq=Q,channel=C)",
        }
        for number in range(50):
            await ws.send({"cmd": "pub", "mq": "Q", "id": f"p{number}", "body": f"b{number}"})
        acked, delivered = set(), []
        while len(delivered) < 50 or len(acked) < 50:
            got = await ws.recv()
            if "status" in got:
                assert got["body"] == "OK, PUB (mq=Q)"
                acked.add(got["id"])
            else:
                assert got["id"] in acked, "the publisher would take the message for the answer"
                delivered.append(got["body"])
        assert delivered == [f"b{number}" for number in range(50)]


async def test_what_a_message_carries(door, form):
    async with door.ws(form) as publisher, door.ws(form) as ws:
        await made(ws)
        await ws.done(cmd="sub", mq="Q", channel="C")
        sent = {
            "cmd": "pub",
            "mq": "Q",
            "id": "m1",
            "body": {"a": [1, None, "ü"]},
            "topic": "t",
            "extra": [1, {"b": None}],
            "cmd2": "x",
        }
        await publisher.done(**sent)
        got = await ws.recv()
        assert str(got.pop("offset")) == "0"
        assert len(got.pop("sender")) == 36
        assert got == {
            "mq": "Q", "channel": "C", "id": "m1", "body": {"a": [1, None, "ü"]}, "topic": "t", "extra": [1, {"b": None}], "cmd2": "x",
        }  # fmt: skip


async def test_each_subscriber_in_turn_and_each_channel_everything(door, form):
    async with door.ws(form) as one, door.ws(form) as two, door.ws(form) as other:
        await made(one)
        await made(one, channel="D")
        for ws, channel in ((one, "C"), (two, "C"), (other, "D")):
            await ws.done(cmd="sub", mq="Q", channel=channel)
        for number in range(6):
            await door.bus.publish("Q", str(number), durable=True)
        assert await bodies(one, 3) == [0, 2, 4]
        assert await bodies(two, 3) == [1, 3, 5]
        assert await bodies(other, 6) == [0, 1, 2, 3, 4, 5]


async def test_the_window_is_credit(door, form):
    async with door.ws(form) as ws:
        await made(ws)
        await ws.done(cmd="sub", mq="Q", channel="C", window=2)
        for number in range(5):
            await door.bus.publish("Q", f"b{number}", durable=True)
        got = [await ws.recv(), await ws.recv()]
        assert [(one["body"], str(one["window"])) for one in got] == [("b0", "1"), ("b1", "0")]
        await ws.silent()
        await ws.send({"cmd": "sub", "mq": "Q", "channel": "C", "window": 1, "ack": False})
        assert (await ws.recv())["body"] == "b2"
        await ws.silent()
        assert [one["body"] for one in (await door.http.get("/?cmd=take&mq=Q&channel=C&window=9"))[1]["body"]] == [
            "b3",
            "b4",
        ]


async def test_a_second_sub_is_another_subscription(door):
    async with door.ws() as ws:
        await made(ws)
        await made(ws, mq="R")
        await ws.done(cmd="sub", mq="Q", channel="C")
        await ws.done(cmd="sub", mq="R", channel="C")
        await door.bus.publish("R", "r", durable=True)
        assert (await ws.recv())["mq"] == "R"
        await door.bus.publish("Q", "q", durable=True)
        assert (await ws.recv())["mq"] == "Q"


async def test_what_no_filter_takes_stays(door, form):
    async with door.ws(form) as one, door.ws(form) as two:
        await made(one)
        await one.done(cmd="sub", mq="Q", channel="C", topic="a.#")
        for tag in ("a", "b", "a.x", "c"):
            await two.done(cmd="pub", mq="Q", body=tag, topic=tag)
        await two.done(cmd="pub", mq="Q", body="none")
        assert await bodies(one, 2) == ["a", "a.x"]
        await one.silent()
        await two.done(cmd="sub", mq="Q", channel="C", topic="c;b")
        assert await bodies(two, 2) == ["b", "c"]
        answer = await one.done(cmd="take", mq="Q", channel="C")
        assert [doors.flat(message)["body"] for message in answer["body"]] == ["none"]


async def test_what_no_filter_takes_stays_when_they_leave(door):
    async with door.ws() as ws:
        await made(ws)
        await ws.done(cmd="sub", mq="Q", channel="C", topic="a")
        await ws.done(cmd="pub", mq="Q", body="b", topic="b")
        await ws.done(cmd="pub", mq="Q", body="a", topic="a", ack=True)
        assert (await ws.recv())["body"] == "a"
    async with door.bus.channel("Q", "C", create=False) as native:
        assert (await native.recv(15)).payload == b"b"


async def test_many_that_no_filter_takes_stop_the_channel_and_lose_nothing(tmp_path):
    async with doors.opened(aside=4) as door, door.ws() as ws, door.ws() as rest:
        await made(ws)
        await ws.done(cmd="sub", mq="Q", channel="C", topic="a")
        for number in range(10):
            await rest.done(cmd="pub", mq="Q", body=number, topic="b")
        await rest.done(cmd="pub", mq="Q", body="a", topic="a")
        await rest.done(cmd="sub", mq="Q", channel="C", topic="b")
        assert await bodies(rest, 10) == list(range(10))
        assert (await ws.recv())["body"] == "a"


async def test_exclusive_has_one_subscriber(door, form):
    async with door.ws(form) as one, door.ws(form) as two:
        await made(one, channelMask=2)
        await one.done(cmd="sub", mq="Q", channel="C")
        assert (await two.ask(cmd="sub", mq="Q", channel="C"))["status"] == 403
        assert (await two.ask(cmd="take", mq="Q", channel="C"))["status"] == 403
        await one.done(cmd="sub", mq="Q", channel="C", window=5)
        with pytest.raises(busway.Rejected):
            await door.bus.channel("Q", "C", create=False).start()
        await made(one, mq="E", mqMask=2)
        await made(one, mq="E", channel="D")
        await one.done(cmd="sub", mq="E", channel="C")
        assert (await two.ask(cmd="sub", mq="E", channel="D"))["status"] == 403


async def gone(door, path):
    for _ in range(200):
        if (await door.http.get(path))[0] == 404:
            return True
        await asyncio.sleep(0.02)
    return False


async def test_delete_on_exit(door, form):
    async with door.ws(form) as one:
        await made(one, mqMask=1)
        await made(one, mq="R", channelMask=1)
        async with door.ws(form) as two:
            for ws in (one, two):
                await ws.done(cmd="sub", mq="Q", channel="C")
                await ws.done(cmd="sub", mq="R", channel="C")
        await one.done(cmd="query", mq="Q")
        await one.done(cmd="query", mq="R", channel="C")
    assert await gone(door, "/?cmd=query&mq=Q")
    assert await gone(door, "/?cmd=query&mq=R&channel=C")
    assert (await door.http.get("/?cmd=query&mq=R"))[0] == 200


async def test_a_subscriber_is_told_that_its_queue_is_gone(door, form):
    async with door.ws(form) as ws:
        await made(ws)
        await ws.done(cmd="sub", mq="Q", channel="C")
        await door.bus.remove_stream("Q")
        got = await ws.recv()
        assert (got["status"], got["mq"], got["channel"]) == (404, "Q", "C")
        await made(ws)
        await ws.done(cmd="sub", mq="Q", channel="C")
        await ws.done(cmd="pub", mq="Q", body="again")
        assert (await ws.recv())["body"] == "again"


async def test_long_polling(door):
    await door.http.get("/?cmd=create&mq=Q&channel=C")
    waiting = asyncio.ensure_future(door.http.get("/?cmd=take&mq=Q&channel=C&timeout=30"))
    while not (await door.bus.channel_info("Q", "C")).consumers:
        await asyncio.sleep(0.01)
    await door.bus.publish("Q", "late", durable=True)
    status, answer = await waiting
    assert (status, answer["body"][0]["body"]) == (200, "late")
    assert (await door.http.get("/?cmd=take&mq=Q&channel=C&timeout=0.05"))[0] == 604


async def test_a_poll_that_is_given_up_takes_nothing(door):
    await door.http.get("/?cmd=create&mq=Q&channel=C")
    waiting = asyncio.ensure_future(door.http.get("/?cmd=take&mq=Q&channel=C&timeout=30"))
    while not (await door.bus.channel_info("Q", "C")).consumers:
        await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])
    await door.bus.publish("Q", "kept", durable=True)
    for _ in range(100):
        status, answer = await door.http.get("/?cmd=take&mq=Q&channel=C&timeout=1")
        if status == 200:
            break
    assert answer["body"][0]["body"] == "kept"


async def test_lines_of_json(door, form):
    await door.http.get("/?cmd=create&mq=Q&channel=C")
    more = (
        {"headers": {"cmd": "sub", "mq": "Q", "channel": "C"}}
        if form == "headers"
        else {"params": {"cmd": "sub", "mq": "Q", "channel": "C"}}
    )
    async with door.session.get(door.url + "/", **more) as response:
        assert (response.status, response.content_type) == (200, "application/x-ndjson")
        assert doors.flat(json.loads(await response.content.readline()))["body"] == "OK, SUB (mq=Q,channel=C)"
        for number in range(3):
            await door.bus.publish("Q", str(number), durable=True)
            got = json.loads(await response.content.readline())
            assert ("headers" in got) == (form == "headers")
            assert doors.flat(got)["body"] == number
    status, answer = await door.http.get("/?cmd=sub&mq=No&channel=C")
    assert (status, answer["body"]) == (404, "MQ(No) Not Found")


async def test_server_sent_events(door):
    await door.http.get("/?cmd=create&mq=Q&channel=C")
    asked = {"cmd": "sub", "mq": "Q", "channel": "C"}
    async with door.session.get(door.url + "/", params=asked, headers={"Accept": "text/event-stream"}) as response:
        assert response.content_type == "text/event-stream"
        assert await response.content.readline() == b"event: reply\n"
        assert json.loads((await response.content.readline()).removeprefix(b"data: "))["status"] == 200
        await response.content.readline()
        await door.bus.publish("Q", "zwei\nZeilen", durable=True)
        assert await response.content.readline() == b"id: 0\n"
        assert json.loads((await response.content.readline()).removeprefix(b"data: "))["body"] == "zwei\nZeilen"


async def test_without_acknowledgements(door, form):
    async with door.ws(form) as ws:
        await made(ws)
        await ws.send({"cmd": "sub", "mq": "Q", "channel": "C", "ack": "false"})
        await ws.send({"cmd": "pub", "mq": "Q", "id": "x", "body": "b", "ack": False})
        got = await ws.recv()
        assert (got["id"], got["body"]) == ("x", "b")
        assert (await ws.ask(cmd="pub", mq="No", ack=False))["status"] == 404
    status, answer = await door.http.get("/?cmd=pub&mq=Q&body=x&ack=false")
    assert (status, answer["body"]) == (200, None)


async def test_requests_are_done_in_their_order(door, form):
    async with door.ws(form) as ws:
        for number in range(20):
            await ws.send({"cmd": "create", "mq": f"Q{number}", "channel": "C", "id": f"c{number}"})
            await ws.send({"cmd": "sub", "mq": f"Q{number}", "channel": "C", "id": f"s{number}"})
            await ws.send({"cmd": "pub", "mq": f"Q{number}", "body": number, "id": f"p{number}"})
        got = [await ws.recv() for _ in range(80)]
        assert all(one["status"] == 200 for one in got if "status" in one)
        assert [one["body"] for one in got if "status" not in one] == list(range(20))
