"""Stored messages of several nodes: published in turn, taken, and compared by their numbers."""

import asyncio


async def some(bus, topic, first, count):
    for number in range(first, first + count):
        await bus.publish(topic, str(number).encode(), durable=True)


async def take(subscription, count):
    async with asyncio.timeout(60):
        return [await subscription.recv() for _ in range(count)]


def numbers(messages, topic=None):
    return [int(message.payload) for message in messages if topic in {None, message.topic}]
