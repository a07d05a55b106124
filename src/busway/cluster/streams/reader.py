"""What clients of this node read of the parts that other nodes have of a stream, block by block.

A driver over `parts`, which asks whoever has a part: its node, or a mirror of that.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from busway.broker.peers import Portion
from busway.cluster.streams.remote import RemoteStream, RemoteStreams
from busway.errors import Code, Rejected, StoreFailed

if TYPE_CHECKING:
    from busway.broker.hub import Hub

_PATIENCE: Final = 10.0
"""Seconds in which somebody has to answer who has the part."""


class RemoteReader:
    """For one hub."""

    def __init__(self, hub: "Hub", parts: RemoteStreams) -> None:
        self._hub = hub
        self._parts = parts

    async def read(self, guid: str, name: str, offset: int, most: int, pattern: str, rules: bytes) -> Portion:
        """What lies from this offset on. Raises StoreFailed if nobody has it now."""
        part = self._part(guid, name)
        reader = part.reader(pattern, rules)
        news = asyncio.Event()
        try:
            async with asyncio.timeout(_PATIENCE):
                while (portion := reader.read(offset, most, news.set)) is None:
                    self._hub.flush()
                    await news.wait()
                    news.clear()
                return portion
        except TimeoutError:
            raise _silent(part) from None
        finally:
            reader.stop()

    async def locate(self, guid: str, name: str, time: int) -> int:
        """The offset of the first message that was stored at this time (ns) or later."""
        part = self._part(guid, name)
        told: asyncio.Future[int] = self._hub.loop.create_future()
        part.locate("time", time, lambda offset: None if told.done() else told.set_result(offset))
        self._hub.flush()
        try:
            async with asyncio.timeout(_PATIENCE):
                return await told
        except TimeoutError:
            raise _silent(part) from None

    def _part(self, guid: str, name: str) -> RemoteStream:
        if (part := self._parts.find(guid, name)) is None:
            raise Rejected(f"no node {guid} with a stream {name!r} is known here", code=Code.NO_STREAM)
        return part


def _silent(part: RemoteStream) -> StoreFailed:
    return StoreFailed(f"the stream {part.name!r} of node {part.guid[:8]} can't be read now: nobody who has it answers")
