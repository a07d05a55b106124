"""What a broker takes in of what another one did with its channels."""

import pytest

import busway
from busway.broker.progress import ChannelState
from tests.support.net import gather


@pytest.mark.parametrize("ahead", [10**9, 0, -(10**9)])
async def test_a_channel_that_was_made_on_both_sides_is_done_with_what_either_is_done_with(ahead: int) -> None:
    """Its mirror made it while it stood in, by a clock that is ahead or behind; the broker did so when it was back, without having heard of that."""
    async with busway.serve() as server, server.connect() as bus:
        hub = server._running()
        await bus.create_stream("orders", ["orders/**"], store="memory")
        for number in range(6):
            await bus.publish("orders/x", str(number), durable=True)
        stream = hub.streaming.streams["orders"]
        async with bus.channel("orders", "work", window=3) as work:
            for message in await gather(work, 3):
                await message.ack()
            machine = hub.delivering.channels[stream.number]["work"].machine
            state = ChannelState("work", None, machine.epoch + ahead, 0)
            state.done.put(3, 5)
            hub.delivering.standing.rest()
            hub.delivering.standing.absorb(stream, {"work": state}, made=["work"], gone=[])
            hub.delivering.standing.wake()
        async with bus.channel("orders", "work", window=3) as work:
            assert (await work.recv(timeout=60)).text == "5"
