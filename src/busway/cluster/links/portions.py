"""Sends long lists of entries over links: in portions, and as fast as their outboxes have room.

The parts of the cluster that replicate a map use it when a link opens.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from busway.settings import KiB, MiB

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime

PORTION: Final = 64 * KiB
"""Bytes of entries after which a frame ends."""
_AHEAD: Final = MiB
"""Bytes that may wait in the outbox of a link before it gets more entries."""

_encode: Final = msgspec.msgpack.Encoder().encode


def portions(entries: Iterable[Any]) -> Iterator[list[msgspec.Raw]]:
    """Encode entries, and divide them into lists of which each fits into a frame."""
    batch, size = list[msgspec.Raw](), 0
    for entry in entries:
        packed = _encode(entry)
        if batch and size + len(packed) > PORTION:
            yield batch
            batch, size = [], 0
        batch.append(msgspec.Raw(packed))
        size += len(packed)
    if batch:
        yield batch


class Portions:
    """The lists that one node sends. `send` sends one portion over a link."""

    def __init__(self, runtime: "Runtime", send: Callable[[int, list[Any]], object]) -> None:
        self._runtime = runtime
        self._send = send
        self._unsent: dict[int, Iterator[list[msgspec.Raw]]] = {}

    def __contains__(self, conn: int) -> bool:
        """Whether a link has not got its whole list yet."""
        return conn in self._unsent

    def begin(self, conn: int, entries: Iterable[Any]) -> None:
        """Send a list, in place of the rest of an earlier one."""
        self._unsent[conn] = portions(entries)
        self.room(conn)

    def room(self, conn: int) -> None:
        """A link has room: send more."""
        unsent = self._unsent.get(conn)
        while unsent is not None and self._runtime.engine.pending(conn) < _AHEAD:
            if (portion := next(unsent, None)) is None:
                del self._unsent[conn]
                return
            self._send(conn, portion)
        if unsent is not None:
            self._runtime.engine.want_room(conn)

    def closed(self, conn: int) -> None:
        self._unsent.pop(conn, None)
