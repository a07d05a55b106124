"""One physical connection of a client: bytes between its transport and the native session, and its heartbeat.

Output is written once per turn of the loop, or earlier if somebody waits for it. Reading never pauses: a subscription
without room says so to the broker (see holding.py). When the connection is over it stays over; the next one is a new object.
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
"""Beats in one heartbeat."""
_AHEAD: Final = 24
"""Requests or replies that are written together, at most. Each of them costs a program microseconds, for which the other side would wait."""
_EARLY: Final = 64 * KiB
"""Bytes that a server may say before it is greeted: why it does not want to be."""


class Connection(asyncio.BufferedProtocol):
    """Driver of one transport. Made by a Core, which hears of what arrives and of the end."""

    transport: asyncio.Transport

    def __init__(self, core: "Core", url: str) -> None:
        self.url = url
        self.greeted = False
        self.paused = False
        self.stopped = False
        """The broker wants no publishes now: somebody who gets them is slow."""
        self.unwritten = 0
        """Bytes that the transport had not given to the system when it was last written to."""
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
        self._ahead = 0
        self._heard = False
        self._news = False
        self._said = False
        self._quiet = 0
        self._mute = 0
        self._heartbeat = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._early: bytearray | None = bytearray()
        """What came before begin()."""

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
            if len(self._early) > _EARLY:
                self.fail(RemoteProtocolError("much was said before the greeting"))
            return
        self._feed(self._buffer, nbytes)

    def _feed(self, data: memoryview | bytearray, nbytes: int) -> None:
        session = self._session
        self._heard = self._news = True
        self._inside = True
        try:
            if events := session.feed(data, nbytes):
                self._core.handle(events)
        except BusError as error:  # the broker broke the rules
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

    # The session calls this, when output begins to wait.

    def on_output(self) -> None:
        if not self._inside and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    # The client calls these.

    def begin(self) -> None:
        """It is the one that is greeted: the session hears what comes over it, and what the other side has said by itself."""
        early, self._early = self._early, None
        if early:
            self._feed(early, len(early))

    def flush(self) -> None:
        """Write what waits, now."""
        self._scheduled = False
        self._ahead = 0
        if not self.over and (view := self._session.take()) is not None:
            self._said = True
            self.transport.write(view)
            self.unwritten = self.transport.get_write_buffer_size()

    def _flush_now(self) -> None:
        """Write what waits in the midst of a turn; at its end more may be there."""
        self._ahead = 0
        if not self.over and (view := self._session.take()) is not None:
            self._said = True
            write_now(self.transport, view)
            self.unwritten = self.transport.get_write_buffer_size()

    def hold_back(self) -> None:
        """Output that begins to wait now is written by made(), or by flush() if that can't be."""
        self._scheduled = not self._inside

    def made(self, *, alone: bool) -> None:
        """A frame waits to be written that somebody waits for.

        One that is `alone` gains nothing by waiting for the end of the turn, and of many some are written before the last is made, so that the
        other side has something to do meanwhile.
        """
        if alone and not self._inside:
            self.flush()
            return
        self._ahead += 1
        if self._ahead >= _AHEAD and self._direct:
            self._flush_now()

    def stop(self, *, stop: bool) -> None:
        """Publish no more, or go on."""
        self.stopped = stop
        self.update()
        self.wake()

    def update(self) -> None:
        """Tell the session whether publishes may go out."""
        if not self.over:
            self._session.writable(self._core.open and not self.paused and not self.stopped)

    async def room(self, *, publish: bool = False) -> None:
        """Return when there is room, for a publish or for anything else, or when the connection is over."""
        while (self.paused or (publish and self.stopped)) and not self.over and self._core.connection is self:
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(future)
            await future

    def wake(self) -> None:
        """Let those who wait for room look again."""
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    def heard(self) -> bool:
        """Whether something came since this was asked last."""
        news, self._news = self._news, False
        return news

    def keep_alive(self, heartbeat: float) -> None:
        """Begin with the heartbeat."""
        self._heartbeat = heartbeat
        self._timer = self._loop.call_later(heartbeat / _BEATS, self._on_beat)

    def _on_beat(self) -> None:
        self._timer = self._loop.call_later(self._heartbeat / _BEATS, self._on_beat)
        self._mute = 0 if self._said else self._mute + 1
        self._said = False
        if self._mute >= 2 * _BEATS:
            # The broker has asked, and its question waits behind much that is still to come: it is told before it gives up.
            self._session.ping(0)
        if self._heard:
            self._heard = False
            self._quiet = 0
            return
        self._quiet += 1
        if self._quiet >= 3 * _BEATS:
            self.fail(Disconnected(f"nothing heard for {3 * self._heartbeat:g} s", code=Code.IDLE))
        elif self._quiet >= _BEATS:
            self._session.ping(0)

    def fail(self, error: BusError) -> None:
        """End it now, for this reason."""
        log.debug("%s: %s", self.url, error)
        self.reason = error
        self.transport.abort()

    def finish(self, error: BusError | None = None) -> None:
        """End it after what was written has left."""
        self.reason = self.reason or error
        self.transport.close()

    def discard(self) -> None:
        """Forget it; the core hears no more of it."""
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        if getattr(self, "transport", None) is not None:
            self.transport.abort()
        self.wake()
