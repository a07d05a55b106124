"""Lost connections of clients, and the events that tell of them."""

import asyncio

import busway
from busway.testing import FaultProxy
from tests.support.net import PATIENCE


async def next_event(events: busway.EventStream, kind: str) -> busway.Event:
    """The next event of this kind; others before it are passed over."""
    async with asyncio.timeout(PATIENCE):
        async for event in events:
            if event.kind == kind:
                return event
    raise AssertionError(f"the events ended without {kind}")


def abort(bus: busway.Bus) -> None:
    """End the client's connection without a word to the broker."""
    connection = bus._core.connection
    assert connection is not None
    connection.transport.abort()


async def lose(proxy: FaultProxy, events: busway.EventStream) -> None:
    """Cut the connection. The client knows when this returns, and can't come back before `restore`."""
    proxy.refusing = True
    proxy.cut()
    await next_event(events, "lost")


async def restore(proxy: FaultProxy, events: busway.EventStream) -> busway.Event:
    """Let the client in again, and return when it is back."""
    proxy.refusing = False
    return await next_event(events, "resumed")
