"""Calls between nodes: requests with answers over a link, and messages without an answer.

A part of the cluster declares each type of NODE frame once, as a `Call`, and registers its handler. The parts call each
other through `Calls`, which numbers the requests, decodes frames, and fails the open calls of a link that has ended.
The link SELF leads to the handlers of this node.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar

import msgspec

from busway.cluster.node import Node, Stranger
from busway.cluster.protocol import ANSWER, SELF, NodeProtocolHandler
from busway.errors import BusError, Code, Disconnected, LimitExceeded, Rejected, StoreFailed, Timeout, from_code
from busway.settings import KiB

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime

A = TypeVar("A")
M = TypeVar("M")

_MARGIN: Final = 500 * KiB
"""Approximate bytes by which frames of a link may exceed those of clients."""
_MOST: Final = 65_536
"""Calls of one node that coroutines of this node may answer at a time."""
_ENDED: Final = "the link to the node has ended"

_encode: Final = msgspec.msgpack.Encoder().encode


class _Answer(msgspec.Struct, array_like=True):
    """The body of an answer. `value` is nil if the call has failed."""

    code: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
    text: str
    value: msgspec.Raw


_answers: Final = msgspec.msgpack.Decoder(_Answer)


class Call(Generic[M, A]):
    """A type of NODE frame, and the types of its content and answer. Values that the types refuse end the link.

    `answer` is None for messages without an answer. `ordered`: an answer keeps its position among live messages.
    """

    def __init__(self, kind: int, name: str, content: Any, answer: Any = None, *, ordered: bool = False) -> None:
        self.kind = kind
        self.name = name
        self.ordered = ordered
        self._content: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(content)
        self._answer: msgspec.msgpack.Decoder[A] = msgspec.msgpack.Decoder(answer)

    def read(self, packed: bytes) -> M:
        """Decode the content of a frame. Raises Stranger."""
        try:
            return self._content.decode(packed)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Stranger(f"invalid {self.name}: {error}") from error

    def read_answer(self, packed: bytes) -> A | BusError:
        """Decode the body of an answer. Raises Stranger."""
        try:
            answer = _answers.decode(packed)
            return from_code(answer.code, answer.text) if answer.code else self._answer.decode(answer.value)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Stranger(f"invalid answer to {self.name}: {error}") from error


@dataclass(slots=True, eq=False)
class _Link:
    """The calls over one link."""

    last: int = 0
    """The number of the last call of this node."""
    open: "dict[int, Pending[Any]]" = field(default_factory=dict)
    working: int = 0
    """Calls of the other node that coroutines answer now."""


@dataclass(slots=True, eq=False)
class Pending(Generic[A]):
    """An open call of this node."""

    call: Call[Any, A]
    number: int
    _link: _Link
    _done: Callable[[A | BusError], object]

    def finish(self, result: A | BusError) -> None:
        """Pass on the result, unless the call was cancelled or has one already."""
        if self._link.open.pop(self.number, None) is self:
            self._done(result)

    def cancel(self) -> None:
        """Ignore the answer."""
        self._link.open.pop(self.number, None)


class Calls(NodeProtocolHandler):
    """The calls of one node. Of the handlers of the mesh it is the first one, so the others can call over a new link."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self.nodes: dict[int, Node] = {}
        """The node behind each link."""
        self._links: dict[int, _Link] = {SELF: _Link()}
        self._handlers: dict[int, tuple[Call[Any, Any], Callable[[int, int, Any], object]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # Handlers. They are registered before the first link.

    @property
    def kinds(self) -> frozenset[int]:  # type: ignore[override]
        return frozenset({ANSWER, *self._handlers})

    def on(self, call: Call[M, Any], handler: Callable[[int, int, M], object]) -> None:
        """Call `handler` with the link, the number and the content of each such frame. It may call answer() later."""
        self._handlers[call.kind] = call, handler

    def serve(self, call: Call[M, A], handler: Callable[[int, M], Awaitable[A]]) -> None:
        """Answer each such request with what `handler` returns, or with the BusError that it raises."""

        def start(conn: int, number: int, content: M) -> None:
            link = self._links[conn]
            if link.working >= _MOST:
                raise Stranger(f"more than {_MOST} calls at a time")
            link.working += 1
            work = self._serve(call, conn, link, number, handler(conn, content))
            task = self._runtime.loop.create_task(work, name=f"busway {call.name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self.on(call, start)

    async def _serve(self, call: Call[M, A], conn: int, link: _Link, number: int, work: Awaitable[A]) -> None:
        result: A | BusError
        try:
            result = await work
        except BusError as error:
            result = error
        except msgspec.MsgspecError as error:  # a value in the request that the handler can't convert
            result = Rejected(str(error), code=Code.INVALID_SETTING)
        except Exception as error:  # noqa: BLE001, logged and counted by unexpected()
            self._runtime.unexpected(error, None, f"the {call.name} of another node")
            result = StoreFailed(f"unexpected error: {error}")
        link.working -= 1
        if self._links.get(conn) is link:
            self.answer(conn, call, number, result)
            self._runtime.flush()

    def answer(self, conn: int, call: Call[M, A], number: int, result: A | BusError) -> None:
        """Answer a request of this number."""
        if conn not in self._links:
            return
        if conn == SELF:
            self._runtime.loop.call_soon(self._answered_here, number, result)
            return
        if not isinstance(result, BusError):
            packed = _encode((Code.OK.value, "", result))
            if len(packed) > self.limit(conn):
                result = LimitExceeded(f"an answer of {len(packed)} bytes does not fit into a frame of the other node")
        if isinstance(result, BusError):
            packed = _encode((int(result.code or Code.STORE_FAILED), result.reason, None))
        self._runtime.engine.node(conn, ANSWER, number, packed, ordered=call.ordered)

    # Calls and messages of this node.

    def tell(self, conn: int, call: Call[M, Any], content: M, number: int = 0, *, ordered: bool = False) -> None:
        """Send a frame over a link."""
        if conn == SELF:
            self._runtime.loop.call_soon(self._heard_here, call.kind, number, content)
        else:
            self._runtime.engine.node(conn, call.kind, number, _encode(content), ordered=ordered)

    def send(self, conn: int, call: Call[M, A], content: M, done: Callable[[A | BusError], object]) -> Pending[A]:
        """Begin a call. `done` gets the answer, the error of the other node, or Disconnected if the link ends."""
        link = self._links.get(conn) or _Link()
        link.last += 1
        pending = link.open[link.last] = Pending(call, link.last, link, done)
        if conn in self._links:
            self.tell(conn, call, content, link.last)
        else:
            self._runtime.loop.call_soon(pending.finish, Disconnected(_ENDED))
        return pending

    async def call(self, conn: int, call: Call[M, A], content: M, timeout: float) -> A:
        """Call the other node. Raises its error, Disconnected if the link ends, or Timeout."""
        future: asyncio.Future[A | BusError] = self._runtime.loop.create_future()
        pending = self.send(conn, call, content, lambda result: None if future.done() else future.set_result(result))
        self._runtime.flush()
        try:
            async with asyncio.timeout(timeout):
                result = await future
        except TimeoutError:
            raise Timeout(f"no answer within {timeout:g} s") from None
        finally:
            pending.cancel()
        if isinstance(result, BusError):
            raise result
        return result

    # Links.

    def opened(self, conn: int, node: Node) -> None:
        self.nodes[conn], self._links[conn] = node, _Link()

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - it is the same whenever
        self.nodes.pop(conn, None)
        if (link := self._links.pop(conn, None)) is not None:
            self._runtime.loop.call_soon(
                self._fail, link
            )  # soon, so that every part knows then that the link has ended

    def _fail(self, link: _Link) -> None:
        for pending in list(link.open.values()):
            pending.finish(Disconnected(_ENDED))
        self._runtime.flush()

    def limit(self, conn: int) -> int:
        """The longest answer that the other node accepts."""
        node = self.nodes.get(conn)
        return sys.maxsize if node is None else node.frame + _MARGIN

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:
        if kind == ANSWER:
            link = self._links[conn]
            if (pending := link.open.get(number)) is not None:
                pending.finish(pending.call.read_answer(body))
            elif not 0 < number <= link.last:  # otherwise the call was cancelled
                raise Stranger("answer without a request")
        else:
            call, handler = self._handlers[kind]
            handler(conn, number, call.read(body))

    def _heard_here(self, kind: int, number: int, content: Any) -> None:
        self._handlers[kind][1](SELF, number, content)
        self._runtime.flush()

    def _answered_here(self, number: int, result: Any) -> None:
        if (pending := self._links[SELF].open.get(number)) is not None:
            pending.finish(result)
        self._runtime.flush()

    async def stop(self) -> None:
        """Cancel the work on calls of other nodes."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
