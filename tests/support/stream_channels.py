"""A stream and its channel, whatever stores it."""

import busway
from tests.support.net import eventually, within


async def fill(bus: busway.Bus, begin: int, end: int, topic: str = "orders/a") -> None:
    await within(bus.publish_many(topic, [b"%d" % number for number in range(begin, end)], durable=True))


async def some(channel: busway.Channel, count: int) -> list[busway.Message]:
    return await within(channel.take(count, whole=True))


def numbers(messages: list[busway.Message]) -> list[int]:
    return [int(message.payload) for message in messages]


async def shown(bus: busway.Bus, **figures: int) -> None:
    async def same() -> bool:
        (one,) = [one for one in await bus.channels("orders") if one.name == "c"]
        return all(getattr(one, key) == value for key, value in figures.items())

    await eventually(same)
