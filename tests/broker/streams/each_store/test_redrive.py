"""Dead letters over every store: redriven and lost letters survive the broker."""

import busway
from tests.support.net import within
from tests.support.stream_channels import fill, numbers, shown, some
from tests.support.stream_kits import Place


async def offsets(bus: busway.Bus, *, redriven: bool = False) -> list[int]:
    letters = await within(bus.dead_letters("orders", "c", redriven=redriven))
    return sorted(one.offset for one in letters)


async def test_what_was_sent_back_survives(lasting: Place) -> None:
    place = lasting
    bus = await place.connect()
    await fill(bus, 0, 10)
    async with bus.channel("orders", "c", window=10) as channel:
        await within(channel.reject(await some(channel, 10), "poison"))
        await shown(bus, dead=10, floor=10)
        letters = {one.offset: one for one in await channel.dead()}
        assert (await within(channel.redrive([letters[2], letters[3], letters[7]]))).redriven == 3
        await channel.ack((await some(channel, 3))[1])
    await place.restart()
    assert await offsets(bus) == [0, 1, 4, 5, 6, 8, 9]
    assert await offsets(bus, redriven=True) == list(range(10))
    await shown(bus, lag=2)
    async with bus.channel("orders", "c", window=10) as channel:
        assert numbers(await some(channel, 2)) == [2, 7]
        result = await within(channel.redrive())
        assert (result.redriven, result.before) == (7, 3)
        again = await some(channel, 7)
        assert numbers(again) == [0, 1, 4, 5, 6, 8, 9]
        await channel.reject(again, "poison again")
    await place.restart()
    assert await offsets(bus) == [0, 1, 4, 5, 6, 8, 9]
