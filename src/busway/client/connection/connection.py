"""One physical connection of a client: moves bytes between its transport and the native session, and sends heartbeats.

The lifecycle makes one object per connection and never reuses it. Output is written once per iteration of the event
loop, or earlier if a caller waits for it. Reading never pauses: a full subscription tells the broker so with a HOLD
frame (see flow_control.py).
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final, cast

from busway.errors import BusError, Code, Disconnected, RemoteProtocolError
from busway.settings import KiB
from busway.transport import client_buffer, is_direct, tune, write_now
from busway.transport.other_protocols import no_bus

if TYPE_CHECKING:
    from busway.client.connection.core import Core

log = logging.getLogger("busway.client")

_BEATS: Final = 3
"""Checks of the connection in one heartbeat interval."""
_MAX_BATCH: Final = 24
"""Most requests or replies that are written together. More would leave the peer idle while they are encoded."""
_MAX_EARLY: Final = 64 * KiB
"""Most bytes that a server may send before the handshake; it may send its reason to refuse the connection."""


class Connection(asyncio.BufferedProtocol):
    """Driver of one transport. Passes the session's events and the end of the connection to its Core."""

    transport: asyncio.Transport

    def __init__(self, core: "Core", url: str) -> None:
        self.url = url
        self.greeted = False
        """The broker has sent its WELCOME."""
        self.paused = False
        self.stopped = False
        """The broker accepts no publishes now, because a subscriber of them is slow."""
        self.unwritten = 0
        """Bytes left in the transport's own buffer after the last write."""
        self.over = False
        self.reason: BusError | None = None
        self.ended: asyncio.Future[None] = core.loop.create_future()
        self._core = core
        self._loop = core.loop
        self._session = core.session
        self._buffer = client_buffer()
        self._inside = False
        self._scheduled = False
        self._direct = False
        self._batched = 0
        self._received_this_beat = False
        self._received_since_check = False
        self._sent_this_beat = False
        self._beats_without_input = 0
        self._beats_without_output = 0
        self._heartbeat = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._early: bytearray | None = bytearray()
        """Bytes that arrived before begin(); None after it."""

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        tune(self.transport)
        self._direct = is_direct(self.transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002, named by asyncio
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.over:
            return
        if self._early is not None:
            self._early += self._buffer[:nbytes]
            if len(self._early) > _MAX_EARLY:
                self.fail(RemoteProtocolError("the server sent more than 64 KiB before the handshake"))
            return
        self._feed(self._buffer, nbytes)

    def _feed(self, data: memoryview | bytearray, nbytes: int) -> None:
        session = self._session
        self._received_this_beat = self._received_since_check = True
        self._inside = True
        try:
            if events := session.feed(data, nbytes):
                self._core.handle(events)
        except BusError as error:  # the broker violated the protocol
            self.fail(error if self.greeted else no_bus(bytes(data[:nbytes])) or error)
            return
        finally:
            self._inside = False
        if session.waiting:
            self.flush()

    def pause_writing(self) -> None:
        self.paused = True
        self.update()

    def resume_writing(self) -> None:
        self.paused = False
        self.update()
        self.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        was_over, self.over = self.over, True
        if not self.ended.done():
            self.ended.set_result(None)
        if not was_over:
            text = f"the connection was lost: {exc}" if exc else "the connection was closed by the other side"
            self._core.lost(self, self.reason or Disconnected(text))
        self.wake()

    # The session calls this when its output buffer is no longer empty.

    def on_output(self) -> None:
        if not self._inside and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    # The client calls these.

    def begin(self) -> None:
        """Start the handshake: the session reads what this connection receives, beginning with the early bytes."""
        early, self._early = self._early, None
        if early:
            self._feed(early, len(early))

    def flush(self) -> None:
        """Write all waiting output now."""
        self._scheduled = False
        self._batched = 0
        if not self.over and (view := self._session.take()) is not None:
            self._sent_this_beat = True
            self.transport.write(view)
            self.unwritten = self.transport.get_write_buffer_size()

    def _flush_now(self) -> None:
        """Write all waiting output in the middle of a loop iteration; more may follow in the same iteration."""
        self._batched = 0
        if not self.over and (view := self._session.take()) is not None:
            self._sent_this_beat = True
            write_now(self.transport, view)
            self.unwritten = self.transport.get_write_buffer_size()

    def defer_flush(self) -> None:
        """Schedule no flush for the frame encoded next; the caller calls frame_encoded(), or flush() on an error."""
        self._scheduled = not self._inside

    def frame_encoded(self, *, alone: bool) -> None:
        """Write a frame whose answer the caller awaits, at once or in a batch.

        A frame that is `alone` gains nothing by waiting for the end of the loop iteration. Of many frames each full
        batch is written early, so that the peer works on it while the rest is encoded.
        """
        if alone and not self._inside:
            self.flush()
            return
        self._batched += 1
        if self._batched >= _MAX_BATCH and self._direct:
            self._flush_now()

    def stop(self, *, stop: bool) -> None:
        """Stop or resume publishing, as the broker requests."""
        self.stopped = stop
        self.update()
        self.wake()

    def update(self) -> None:
        """Tell the session whether publishes may be sent."""
        if not self.over:
            self._session.writable(self._core.open and not self.paused and not self.stopped)

    async def room(self, *, publish: bool = False) -> None:
        """Return when there is room for a publish or for another frame, or when the connection has ended."""
        while (self.paused or (publish and self.stopped)) and not self.over and self._core.connection is self:
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(future)
            await future

    def wake(self) -> None:
        """Wake the callers of room(); each checks again."""
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    def received(self) -> bool:
        """Whether bytes arrived since the last call."""
        received, self._received_since_check = self._received_since_check, False
        return received

    def keep_alive(self, heartbeat: float) -> None:
        """Start the heartbeat."""
        self._heartbeat = heartbeat
        self._timer = self._loop.call_later(heartbeat / _BEATS, self._on_beat)

    def _on_beat(self) -> None:
        self._timer = self._loop.call_later(self._heartbeat / _BEATS, self._on_beat)
        self._beats_without_output = 0 if self._sent_this_beat else self._beats_without_output + 1
        self._sent_this_beat = False
        if self._beats_without_output >= 2 * _BEATS:
            # The broker's own ping may wait behind much other output. This one reaches it before it gives up.
            self._session.ping(0)
        if self._received_this_beat:
            self._received_this_beat = False
            self._beats_without_input = 0
            return
        self._beats_without_input += 1
        if self._beats_without_input >= 3 * _BEATS:
            self.fail(Disconnected(f"the broker sent nothing for {3 * self._heartbeat:g} s", code=Code.IDLE))
        elif self._beats_without_input >= _BEATS:
            self._session.ping(0)

    def fail(self, error: BusError) -> None:
        """Abort the connection for this reason."""
        log.debug("%s: %s", self.url, error)
        self.reason = error
        self.transport.abort()

    def finish(self, error: BusError | None = None) -> None:
        """Close the connection after all written bytes are sent."""
        self.reason = self.reason or error
        self.transport.close()

    def discard(self) -> None:
        """Abort the connection without a report to the core."""
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        if getattr(self, "transport", None) is not None:
            self.transport.abort()
        self.wake()
