"""Queues and channels of the JSON door that are removed and created again at once."""

import pytest

from tests.support import door as doors


async def test_take_from_a_queue_that_was_removed_and_created_again(door):
    for number in range(3):
        assert (await door.http.get("/?cmd=create&mq=Q&channel=C"))[0] == 200
        assert (await door.http.get(f"/?cmd=pub&mq=Q&body=m{number}"))[0] == 200
        status, answer = await door.http.get("/?cmd=take&mq=Q&channel=C")
        assert (status, [one["body"] for one in answer["body"]]) == (200, [f"m{number}"])
        assert (await door.http.get("/?cmd=take&mq=Q&channel=C"))[0] == 604
        assert (await door.http.get("/?cmd=remove&mq=Q"))[0] == 200
        assert (await door.http.get("/?cmd=take&mq=Q&channel=C"))[0] == 404


async def test_take_from_a_channel_that_was_removed_and_created_again(door):
    assert (await door.http.get("/?cmd=create&mq=Q"))[0] == 200
    for number in range(3):
        assert (await door.http.get("/?cmd=create&mq=Q&channel=C&offset=0"))[0] == 200
        assert (await door.http.get(f"/?cmd=pub&mq=Q&body=m{number}"))[0] == 200
        status, answer = await door.http.get("/?cmd=take&mq=Q&channel=C&window=9")
        assert (status, [one["body"] for one in answer["body"]]) == (200, [f"m{one}" for one in range(number + 1)])
        assert (await door.http.get("/?cmd=remove&mq=Q&channel=C"))[0] == 200


@pytest.mark.parametrize("what", [{"mq": "Q"}, {"mq": "Q", "channel": "C"}], ids=["queue", "channel"])
async def test_sub_after_a_take_from_what_was_removed(door, form, what):
    async with door.ws(form) as ws:
        await ws.done(cmd="create", mq="Q", channel="C")
        assert (await ws.ask(cmd="take", mq="Q", channel="C"))["status"] == 604
        await ws.done(cmd="remove", **what)
        await ws.done(cmd="create", mq="Q", channel="C")
        await ws.done(cmd="sub", mq="Q", channel="C")
        await ws.done(cmd="pub", mq="Q", body="new", id="p")
        assert (await ws.recv())["body"] == "new"


@pytest.mark.parametrize("what", [{"mq": "Q"}, {"mq": "Q", "channel": "C"}], ids=["queue", "channel"])
async def test_a_subscriber_without_credit_subscribes_again(door, form, what):
    """While it had no credit, nothing was taken for it, so it was not told that its channel is gone."""
    async with door.ws(form) as ws, door.ws(form) as other:
        await ws.done(cmd="create", mq="Q", channel="C")
        await ws.done(cmd="sub", mq="Q", channel="C", window=1)
        await other.done(cmd="pub", mq="Q", body="old")
        assert (await ws.recv())["body"] == "old"
        await other.done(cmd="remove", **what)
        await other.done(cmd="create", mq="Q", channel="C")
        await ws.done(cmd="sub", mq="Q", channel="C", window=2)
        for body in ("new", "newer"):
            await other.done(cmd="pub", mq="Q", body=body)
            assert (await ws.recv())["body"] == body
        assert (await door.bus.channel_info("Q", "C")).consumers == 1


@pytest.mark.parametrize("type_", ["memory", "disk", "db"])
async def test_a_queue_that_was_created_again_begins_at_0(door, form, type_):
    """Its stream goes on with the offsets that it had, so that no position means two messages."""
    async with door.ws(form) as ws, door.ws(form) as reader:
        for _ in range(3):
            await ws.done(cmd="create", mq="Q", channel="C", mqType=type_)
            found = (await ws.done(cmd="query", mq="Q"))["body"]
            assert (found["size"], found["channels"][0]["offset"]) == (0, 0)
            for number in range(3):
                await ws.done(cmd="pub", mq="Q", body=number, id=f"m{number}")
            got = (await ws.done(cmd="take", mq="Q", channel="C", window=2))["body"]
            assert [int(doors.flat(one)["offset"]) for one in got] == [0, 1]
            assert (await ws.done(cmd="query", mq="Q"))["body"]["size"] == 3
            assert (await ws.done(cmd="query", mq="Q", channel="C"))["body"]["offset"] == 2
            await ws.done(cmd="create", mq="Q", channel="C", offset=1, checksum="m1")
            assert (await ws.ask(cmd="create", mq="Q", channel="C", offset=4))["status"] == 400
            await reader.done(cmd="sub", mq="Q", channel="C")
            got = [await reader.recv() for _ in range(2)]
            assert [(one["body"], int(one["offset"])) for one in got] == [(1, 1), (2, 2)]
            await ws.done(cmd="pub", mq="Q", body="quick", id="q")
            assert int((await reader.recv())["offset"]) == 3
            await ws.done(cmd="remove", mq="Q")
            assert (await reader.recv())["status"] == 404
