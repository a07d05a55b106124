"""Merging the progress that another broker made with this broker's channels."""

import pytest

import busway
from busway.broker.channels.state.progress import ChannelState, Created, Done, rebuild
from tests.support.net import gather


@pytest.mark.parametrize("ahead", [10**9, 0, -(10**9)])
async def test_a_channel_that_was_made_on_both_sides_is_done_with_what_either_is_done_with(ahead: int) -> None:
    """Its mirror made it while it stood in, by a clock that is ahead or behind; the broker did so when it was back, without having heard of that."""
    async with busway.serve() as server, server.connect() as bus:
        hub = server._running()
        await bus.create_stream("orders", ["orders/**"], store="memory")
        for number in range(6):
            await bus.publish("orders/x", str(number), durable=True)
        stream = hub.streams.by_name["orders"]
        async with bus.channel("orders", "work", window=3) as work:
            for message in await gather(work, 3):
                await message.ack()
            machine = hub.channels.channels[stream.number]["work"].machine
            state = ChannelState("work", None, machine.epoch + ahead, 0)
            state.done.put(3, 5)
            hub.channels.ownership.suspend()
            hub.channels.ownership.absorb(stream, {"work": state}, made=["work"], gone=[])
            hub.channels.ownership.unsuspend()
        async with bus.channel("orders", "work", window=3) as work:
            assert (await work.recv(timeout=60)).text == "5"


@pytest.mark.parametrize(("here", "there"), [("first", 4), (4, 0)])
async def test_such_a_channel_begins_where_the_earlier_of_both_did(here: str | int, there: int) -> None:
    """Nobody has acknowledged what lies before the later one."""
    async with busway.serve() as server, server.connect() as bus:
        hub = server._running()
        await bus.create_stream("orders", ["orders/**"], store="memory")
        for number in range(6):
            await bus.publish("orders/x", str(number), durable=True)
        stream = hub.streams.by_name["orders"]
        await bus.create_channel("orders", "work", start=here)
        state = rebuild([Created("work", 1, there, None), Done("work", 1, there + 1)])["work"]
        hub.channels.ownership.suspend()
        hub.channels.ownership.absorb(stream, {"work": state}, made=["work"], gone=[])
        hub.channels.ownership.unsuspend()
        async with bus.channel("orders", "work", window=6) as work:
            left = [number for number in range(6) if number != there]
            assert [message.offset for message in await gather(work, 5)] == left
