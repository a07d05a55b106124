"""Reads the parts of a stream at other nodes for clients of this node, block by block.

`peers` calls it for reads of the broker. `remote` asks a node that has the part: its owner or a mirror.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from busway.broker.peers import Portion
from busway.cluster.links.calls import Call
from busway.cluster.streams.messages import FIND, READ, Fetch, Fetched, Locate, Located
from busway.cluster.streams.remote import Question, RemoteStreams
from busway.errors import Code, Rejected, StoreFailed

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime

_PATIENCE: Final = 10.0
"""Seconds to wait for an answer."""


class RemoteReader:
    """Reads of one broker."""

    def __init__(self, runtime: "Runtime", parts: RemoteStreams) -> None:
        self._runtime = runtime
        self._parts = parts

    async def read(self, guid: str, name: str, offset: int, most: int, pattern: str, rules: bytes) -> Portion:
        """The records of a part from `offset` on. Raises StoreFailed if no linked node has the part."""
        found: Fetched = await self._ask(guid, name, READ, Fetch(guid, name, offset, most, pattern, rules))
        return found.gone, found.first, found.next, found.records, found.end

    async def locate(self, guid: str, name: str, time: int) -> int:
        """The offset of the first message that was stored at this time (ns) or later."""
        found: Located = await self._ask(guid, name, FIND, Locate(guid, name, "time", time))
        return found.offset

    async def _ask(self, guid: str, name: str, call: Call[Any, Any], content: Fetch | Locate) -> Any:
        if (part := self._parts.find(guid, name)) is None:
            raise Rejected(f"this node knows no stream {name!r} of node {guid}", code=Code.NO_STREAM)
        result = self._runtime.loop.create_future()
        question = Question(part, call, content, lambda found: None if result.done() else result.set_result(found))
        part.ask(question)
        self._runtime.flush()
        try:
            async with asyncio.timeout(_PATIENCE):
                return await result
        except TimeoutError:
            text = f"can't read stream {name!r} of node {guid[:8]} now: no node that has it answers"
            raise StoreFailed(text) from None
        finally:
            question.stop()
