"""The cache of recent messages: recent ones are found, older ones are written again, and the output is equal."""

import asyncio

import pytest

from busway.gateway.http.recent import RecentMessages
from busway.gateway.queues.consumers import Pacer


def test_what_is_old_goes_by_count_and_by_size():
    recent = RecentMessages()
    for offset in range(20_000):
        recent.put(("b", "s", offset), b"x")
    assert recent.find(("b", "s", 19_999)) == b"x"
    assert recent.find(("b", "s", 0)) is None
    for offset in range(10):
        recent.put(("b", "big", offset), bytes(1 << 20))
    assert recent.find(("b", "s", 19_999)) is None
    assert recent.find(("b", "big", 0)) is None
    assert recent.find(("b", "big", 9)) is not None


def test_another_broker_has_other_messages_at_the_same_place():
    recent = RecentMessages()
    recent.put(("one", "s", 1), b"x")
    assert recent.find(("two", "s", 1)) is None


async def test_channels_are_taken_from_one_in_each_turn():
    pacer, done = Pacer(), []
    futures = [pacer.next() for _ in range(4)]
    futures[1].cancel()
    for _ in range(12):
        done.append(sum(future.done() and not future.cancelled() for future in futures))
        await asyncio.sleep(0)
    first = done.index(1)
    assert first > 1
    assert done[first : first + 4] == [1, 2, 3, 3]


@pytest.mark.parametrize("body", ["text", "", "12", "ü", 1.50, {"a": ["b", None]}, False, [], '"\\', None])
async def test_subscribers_get_the_same_at_once_and_later(door, body):
    async with door.ws("flat") as ws:
        for channel in ("now", "later"):
            await ws.done(cmd="create", mq="Q", channel=channel)
        await ws.done(cmd="sub", mq="Q", channel="now")
        await ws.send({"cmd": "pub", "mq": "Q", "id": "m", "body": body})
        assert (await ws.recv())["status"] == 200
        now = await ws.recv()
        [opened] = door.server._open
        opened.commands.recent.__init__()
        await ws.done(cmd="sub", mq="Q", channel="later")
        later = await ws.recv()
        assert now.pop("channel") == "now"
        assert later.pop("channel") == "later"
        assert now == later
        assert now.get("body") == body
