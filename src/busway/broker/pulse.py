"""The broker's clock: signs of life, a tick while somebody slow makes publishers wait, an alarm for what is due."""

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from busway.errors import Code

if TYPE_CHECKING:
    from busway.broker.hub import Hub

BEATS: Final = 3
"""Beats in one heartbeat; a client is pinged after one heartbeat of silence and closed after three."""
LINKS: Final = 1.0
"""Seconds between two beats of a broker in a cluster, whose links are to be missed soon."""
TICK: Final = 0.02


class Timed(Protocol):
    """Something that has a time when it wants to be looked at."""

    def deadline(self) -> float | None: ...


class Pulse:
    """Timers of one hub. Between the beats nothing runs unless somebody is blocked."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self._beat: asyncio.TimerHandle | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._beats = BEATS
        self._stopped = False

    def start(self) -> None:
        heartbeat = self._hub.settings.heartbeat
        seconds = heartbeat / BEATS if self._hub.nodes is None else min(heartbeat / BEATS, LINKS)
        self._beats = max(round(heartbeat / seconds), 1)
        self._beat = self._hub.loop.call_later(seconds, self._on_beat)

    def stop(self) -> None:
        for timer in (self._beat, self._tick, self._alarm):
            if timer is not None:
                timer.cancel()
        self._beat = self._tick = self._alarm = None
        self._stopped = True

    def arm(self) -> None:
        """Wake when the first post's grace or the first provider's time is over. One alarm too early does no harm."""
        hub = self._hub
        parts: list[Timed] = [hub.keeping, hub.sharing, hub.streaming, hub.delivering]
        if hub.nodes is not None:
            parts.append(hub.nodes)
        due = [when for part in parts if (when := part.deadline()) is not None]
        if not due or self._stopped:
            return
        when = min(due)
        if self._alarm is not None:
            if self._alarm_at <= when:
                return
            self._alarm.cancel()
        self._alarm, self._alarm_at = self._hub.loop.call_at(when, self._on_alarm), when

    def hurry(self) -> None:
        """Somebody is blocked: tick until nobody is."""
        if self._tick is None:
            self._tick = self._hub.loop.call_later(TICK, self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        self._hub.handle(self._pass_time())
        if self._hub.engine.blocked():
            self.hurry()

    def _on_alarm(self) -> None:
        self._alarm = None
        try:
            now = self._hub.loop.time()
            self._hub.keeping.expire(now)
            self._hub.sharing.expire(now)
            self._hub.streaming.expire(now)
            self._hub.delivering.expire(now)
            if self._hub.nodes is not None:
                self._hub.nodes.expire(now)
            self._hub.flush()
        finally:
            self.arm()

    def _on_beat(self) -> None:
        hub = self._hub
        self.start()
        hub.engine.beat()
        for conn in hub.engine.idle(self._beats * 3):
            session = hub.sessions.get(conn)
            # One that is paused is silent because nobody reads it; the handshake has a deadline of its own.
            if session is not None and session.accepted and not session.paused:
                session.close(Code.IDLE, f"nothing heard for {hub.settings.heartbeat * 3:g} s")
        for conn in hub.engine.waiting():  # its own PING waits with what it published
            hub.engine.ping(conn, 0)
        for conn in hub.engine.idle(self._beats):
            session = hub.sessions.get(conn)
            if session is not None and session.accepted and not session.closing:
                hub.engine.ping(conn, 0)
        if hub.nodes is not None:
            hub.nodes.beat()
        hub.handle(self._pass_time())
        hub.flush()

    def _pass_time(self) -> list[tuple[Any, ...]] | None:
        return self._hub.engine.tick(int(self._hub.loop.time() * 1000))
