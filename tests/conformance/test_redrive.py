"""Dead letters are listed and sent back to their channel: all, some, or matching ones, each once."""

import re
from collections import Counter
from datetime import timedelta

import pytest

import busway
from busway.broker.channels.dead_letters.stream import DeadStream
from busway.client.channels import dead_letters
from tests.support.channels import STREAM, TOPIC, info, nothing, numbers, shown, some, store, stream
from tests.support.net import PATIENCE, Net

pytestmark = pytest.mark.both_loops


async def dead(net: Net, count: int, **settings: object) -> busway.Bus:
    """A channel whose messages have all died; the even ones are unknown customers."""
    bus = await stream(net, count)
    async with bus.channel(STREAM, "c", **settings) as channel:
        for message in await channel.take(count, timeout=PATIENCE, whole=True):
            await message.reject("unknown customer" if message.offset % 2 == 0 else "no such item")
        await shown(bus, dead=count, floor=count)
    return bus


def offsets(letters: list[busway.DeadLetter]) -> list[int]:
    return sorted(one.offset for one in letters)


async def test_a_list_shows_each_letter_in_full(net: Net) -> None:
    bus = await dead(net, 3)
    letters = await bus.dead_letters(STREAM, "c")
    assert offsets(letters) == [0, 1, 2]
    first = min(letters, key=lambda one: one.offset)
    assert (first.stream, first.channel, first.topic, first.payload) == (STREAM, "c", TOPIC, b"0")
    assert (first.reason, first.consumer, first.sender, first.deliveries) == ("unknown customer", "maker", "maker", 1)
    assert first.time is not None
    assert first.time - timedelta(seconds=1) <= first.first <= first.last <= first.died  # type: ignore[operator]
    assert not any(name.startswith("dead_") for name in first.fields)
    assert (first.redriven, first.gone) == (False, False)


async def test_a_list_is_bounded_and_chooses(net: Net) -> None:
    bus = await dead(net, 7)
    async with bus.channel(STREAM, "c") as channel:
        assert len(await channel.dead(last=3)) == 3
        assert len(await channel.dead(last=None)) == 7
        assert offsets(await channel.dead(reason="CUSTOMER")) == [0, 2, 4, 6]
        assert await channel.dead(topic="t/b") == []
        assert len(await channel.dead(topic="t/*", since="1h")) == 7
        assert await bus.dead_letters(STREAM, "c", since="0.000001s") == []
        for wrong in ({"last": 0}, {"topic": "a//b"}, {"since": "yesterday"}):
            with pytest.raises((ValueError, busway.BusError)):
                await channel.dead(**wrong)
        for name, value in {"since": 5, "topic": 5, "reason": 5}.items():
            with pytest.raises(TypeError, match=f"^{name} must be "):
                await channel.dead(**{name: value})
        with pytest.raises(TypeError, match=r"^letters must be "):
            await channel.redrive(5)  # type: ignore[arg-type]


async def test_all_come_back_once_and_as_if_for_the_first_time(net: Net) -> None:
    bus = await dead(net, 5)
    other = await bus.create_channel(STREAM, "other", start="new")
    result = await bus.redrive_channel(STREAM, "c")
    assert (result.redriven, result.before, result.gone, result.left) == (5, 0, 0, 0)
    assert await bus.dead_letters(STREAM, "c") == []
    assert [one.redriven for one in await bus.dead_letters(STREAM, "c", redriven=True)] == [True] * 5
    again = await bus.redrive_channel(STREAM, "c")
    assert (again.redriven, again.before) == (0, 5)
    async with bus.channel(STREAM, "c") as channel:
        messages = await some(channel, 5)
        assert numbers(messages) == [0, 1, 2, 3, 4]
        assert {one.deliveries for one in messages} == {1}
        await channel.ack(messages)
        assert await nothing(bus, channel)
    assert (await info(bus, "other")).lag == other.lag == 0, "no other channel gets them"
    await shown(bus, floor=5, lag=0)


async def test_letters_that_were_just_rejected_are_listed_and_come_back(net: Net) -> None:
    bus = await stream(net, 50)
    async with bus.channel(STREAM, "c", window=0) as channel:
        for number in range(10):
            await channel.reject(await channel.take(5, timeout=PATIENCE, whole=True), "unknown customer")
            if number % 2:
                assert len(await channel.dead()) == 5
            assert await channel.redrive() == busway.Redrive(redriven=5, before=5 * number)
            await channel.ack(await channel.take(5, timeout=PATIENCE, whole=True))


async def test_letters_that_can_not_be_stored_now_are_left(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = await stream(net, 2)
    monkeypatch.setattr(dead_letters, "_STORING", 0.1)
    async with bus.channel(STREAM, "c") as channel:
        with monkeypatch.context() as patch:
            patch.setattr(DeadStream, "missing_for", lambda *_: 0.05)
            await channel.reject(await some(channel, 2), "unknown customer")
            assert await channel.dead() == []
            assert await channel.redrive() == busway.Redrive(left=2)
            assert await channel.redrive(reason="unknown") == busway.Redrive(), "their reasons are not known yet"
        await shown(bus, dead=2)
        assert (await channel.redrive()).redriven == 2


async def test_some_come_back_by_object_id_or_filter(net: Net) -> None:
    bus = await dead(net, 9)
    letters = {one.offset: one for one in await bus.dead_letters(STREAM, "c")}
    async with bus.channel(STREAM, "c", window=20) as channel:
        assert (await channel.redrive(letters[3])).redriven == 1
        assert numbers(await some(channel, 1)) == [3]
        assert (await channel.redrive([letters[5], letters[7].id])).redriven == 2
        assert numbers(await some(channel, 2)) == [5, 7]
        assert (await channel.redrive(reason="unknown")).redriven == 5
        assert numbers(await some(channel, 5)) == [0, 2, 4, 6, 8]
        assert offsets(await channel.dead()) == [1]
        assert (await channel.redrive(letters[3])).before == 1
        for wrong in ("", "no such id"):
            with pytest.raises(busway.OutOfRange, match="dead letter"):
                await channel.redrive(wrong)
        with pytest.raises(TypeError):
            await channel.redrive([5])  # type: ignore[list-item]
        assert await nothing(bus, channel)


async def test_what_fails_again_is_a_dead_letter_again(net: Net) -> None:
    bus = await dead(net, 2, max_deliveries=2)
    await bus.redrive_channel(STREAM, "c")
    async with bus.channel(STREAM, "c") as channel:
        for message in await some(channel, 2):
            await message.nack(delay=0, reason="still down")
        for message in await some(channel, 2):
            assert message.deliveries == 2
            await message.nack(delay=0, reason="still down")
        await shown(bus, dead=4)
        letters = await channel.dead()
        assert [(one.reason, one.deliveries) for one in letters] == [("still down", 2)] * 2
        assert len(await channel.dead(redriven=True)) == 4
        assert (await channel.redrive()).redriven == 2
        await channel.ack(await some(channel, 2))
        assert await channel.dead() == []


async def test_between_new_messages_they_come_first(net: Net) -> None:
    bus = await dead(net, 3)
    await store(bus, 3, 6)
    await bus.redrive_channel(STREAM, "c")
    async with bus.channel(STREAM, "c", window=2) as channel:
        seen = []
        for _ in range(6):
            message = await channel.recv(timeout=PATIENCE)
            seen.append(int(message.payload))
            await message.ack()
        assert seen == list(range(6))
    await shown(bus, floor=6, lag=0)


async def test_messages_that_are_gone_stay_dead_letters(net: Net) -> None:
    bus = await stream(net, 4, max_count=4)
    async with bus.channel(STREAM, "c") as channel:
        for message in await some(channel, 4):
            await message.reject("no")
        await shown(bus, dead=4)
        await store(bus, 4, 4000)
        await bus.update_stream(STREAM, max_count=1)
        result = await channel.redrive()
        assert (result.redriven, result.gone) == (0, 4)
        letters = await channel.dead()
        assert sorted((one.gone, one.payload) for one in letters) == [(True, b"%d" % number) for number in range(4)]


async def test_of_what_was_removed_none_comes_back_and_none_is_lost(net: Net) -> None:
    bus = await dead(net, 2)
    letters = await bus.dead_letters(STREAM, "c")
    await bus.remove_channel(STREAM, "c")
    with pytest.raises(busway.Rejected, match="no channel 'c'"):
        await bus.redrive_channel(STREAM, "c")
    with pytest.raises(busway.Rejected, match="no channel 'c'"):
        await bus.redrive_channel(STREAM, "c", letters)
    await bus.create_channel(STREAM, "c", start="new")
    assert offsets(await bus.dead_letters(STREAM, "c")) == [0, 1]
    assert (await bus.redrive_channel(STREAM, "c")).redriven == 2
    await bus.remove_stream(STREAM)
    with pytest.raises(busway.Rejected, match=f"no stream '{STREAM}'"):
        await bus.redrive_channel(STREAM, "c")
    assert Counter(one.name for one in await bus.streams())["dead"] == 1
    await bus.create_stream(STREAM, ["t/**"])
    await bus.create_channel(STREAM, "c")
    assert (await bus.redrive_channel(STREAM, "c")).gone == 2, "its offsets belong to other messages now, or to none"
    with pytest.raises(ValueError, match=re.escape(f"{STREAM}/c")):
        await bus.redrive_channel("default", "c", letters)


async def test_letters_that_are_none_are_refused(net: Net) -> None:
    bus = await dead(net, 1)
    for letters in ([(-1, 0)], [("a", 0)], 5, [(0, 0, 0)] * 1001, [(0,)]):
        with pytest.raises(busway.BusError):
            await bus.request("$bus/channel/redrive", {"stream": STREAM, "channel": "c", "letters": letters})
    for letters in ([(99, 2**62)], [(0, 2**63 - 1, 5)]):
        question = {"stream": STREAM, "channel": "c", "letters": letters}
        assert (await bus.request("$bus/channel/redrive", question)).json() == {"states": [3]}
    with pytest.raises(busway.OutOfRange, match="not known here"):
        await bus.request("$bus/channel/dead", {"stream": STREAM, "channel": "c", "letters": [], "broker": "0" * 32})
    assert offsets(await bus.dead_letters(STREAM, "c")) == [0]
