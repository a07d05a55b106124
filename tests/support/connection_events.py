"""Events of a connection, one kind at a time."""

import asyncio

import busway
from tests.support.net import PATIENCE


async def next_event(events: busway.EventStream, kind: str) -> busway.Event:
    """The next event of this kind; others before it are passed over."""
    async with asyncio.timeout(PATIENCE):
        async for event in events:
            if event.kind == kind:
                return event
    raise AssertionError(f"the events ended without {kind}")
