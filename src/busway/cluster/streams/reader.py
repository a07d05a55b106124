"""Reads the parts of a stream at other nodes for clients of this node, block by block.

`peers` calls it for reads of the broker. `remote` asks a node that has the part: its owner or a mirror.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from busway.broker.peers import Portion
from busway.cluster.streams.remote import RemoteStream, RemoteStreams
from busway.errors import Code, Rejected, StoreFailed

if TYPE_CHECKING:
    from busway.broker.hub import Hub

_PATIENCE: Final = 10.0
"""Seconds to wait for an answer."""


class RemoteReader:
    """Reads of one hub."""

    def __init__(self, hub: "Hub", parts: RemoteStreams) -> None:
        self._hub = hub
        self._parts = parts

    async def read(self, guid: str, name: str, offset: int, most: int, pattern: str, rules: bytes) -> Portion:
        """The records of a part from `offset` on. Raises StoreFailed if no linked node has the part."""
        part = self._part(guid, name)
        reader = part.reader(pattern, rules)
        changed = asyncio.Event()
        try:
            async with asyncio.timeout(_PATIENCE):
                while (portion := reader.read(offset, most, changed.set)) is None:
                    self._hub.flush()
                    await changed.wait()
                    changed.clear()
                return portion
        except TimeoutError:
            raise _no_answer(part) from None
        finally:
            reader.stop()

    async def locate(self, guid: str, name: str, time: int) -> int:
        """The offset of the first message that was stored at this time (ns) or later."""
        part = self._part(guid, name)
        result: asyncio.Future[int] = self._hub.loop.create_future()
        part.locate("time", time, lambda offset: None if result.done() else result.set_result(offset))
        self._hub.flush()
        try:
            async with asyncio.timeout(_PATIENCE):
                return await result
        except TimeoutError:
            raise _no_answer(part) from None

    def _part(self, guid: str, name: str) -> RemoteStream:
        if (part := self._parts.find(guid, name)) is None:
            raise Rejected(f"this node knows no stream {name!r} of node {guid}", code=Code.NO_STREAM)
        return part


def _no_answer(part: RemoteStream) -> StoreFailed:
    return StoreFailed(f"can't read stream {part.name!r} of node {part.guid[:8]} now: no node that has it answers")
