"""The broker's clock: signs of life, a tick while somebody slow makes publishers wait, an alarm for what is due.

A node of a cluster that has slept, as a process that was stopped or a host that was suspended, lets go of its clients before it reads what they sent:
they may have gone to another node meanwhile, and have published it there again. Who is still there comes back, and sends again what was not answered.
"""

import asyncio
import logging
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol

from busway.common import environment
from busway.errors import Code

if TYPE_CHECKING:
    from busway.broker.hub import Hub
    from busway.broker.peers import Members

log = logging.getLogger("busway.broker")

BEATS: Final = 3
"""Beats in one heartbeat; a client is pinged after one heartbeat of silence and closed after three."""
LINKS: Final = 1.0
"""Seconds between two beats of a broker in a cluster, whose links are to be missed soon."""
TICK: Final = 0.02
ASLEEP: Final = 2
"""Heartbeats from one beat to the next after which clients may be elsewhere: they bear a silence of three, of which one may have been before."""


class Timed(Protocol):
    """Something that has a time when it wants to be looked at."""

    def deadline(self) -> float | None: ...


class Clock:
    """Timers of one hub. Between the beats nothing runs unless somebody is blocked."""

    def __init__(self, hub: "Hub", members: "Members") -> None:
        self._hub = hub
        self._members = members
        self._beat: asyncio.TimerHandle | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._beats = BEATS
        self._stopped = False
        self._awake = 0.0
        self.waited_for = inf
        """Until then no client has given this broker up because it slept. By the clock that also runs while the host sleeps."""

    def start(self) -> None:
        heartbeat = self._hub.settings.heartbeat
        seconds = heartbeat / BEATS if not self._members.clustered else min(heartbeat / BEATS, LINKS)
        self._beats = max(round(heartbeat / seconds), 1)
        self._beat = self._hub.loop.call_later(seconds, self._on_beat)
        if self._members.clustered:  # else they come back here, where it is known what they have sent
            self._awake = environment.boottime()
            self.waited_for = self._awake + ASLEEP * heartbeat

    def stop(self) -> None:
        for timer in (self._beat, self._tick, self._alarm):
            if timer is not None:
                timer.cancel()
        self._beat = self._tick = self._alarm = None
        self._stopped = True
        self.waited_for = inf

    def arm(self) -> None:
        """Wake when the first post's grace or the first provider's time is over. One alarm too early does no harm."""
        hub = self._hub
        parts: list[Timed] = [hub.retained, hub.services, hub.streams, hub.channels, self._members]
        due = [when for part in parts if (when := part.deadline()) is not None]
        if not due or self._stopped:
            return
        when = min(due)
        if self._alarm is not None:
            if self._alarm_at <= when:
                return
            self._alarm.cancel()
        self._alarm, self._alarm_at = self._hub.loop.call_at(when, self._on_alarm), when

    def look(self) -> None:
        """Let go of the clients if this broker has slept for so long that they may be elsewhere.

        After a sleep a loop may read before it looks at its timers, so who reads looks first. Clients in this process have slept, too, and links see to
        themselves.
        """
        if (now := environment.boottime()) <= self.waited_for:
            return
        slept, self.waited_for = now - self._awake, inf  # until the next beat, which is due
        sessions = [one for one in self._hub.everyone if one.accepted and not one.node and one.scheme != "memory"]
        for session in sessions:
            session.why, session.fault = "idle", f"this broker slept for {slept:.3g} s"
            session.abort()
        log.warning("this broker slept for %.3g s: %d clients have to come back", slept, len(sessions))

    def hurry(self) -> None:
        """Somebody is blocked: tick until nobody is."""
        if self._tick is None:
            self._tick = self._hub.loop.call_later(TICK, self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        self.look()
        self._hub.handle(self._pass_time())
        if self._hub.engine.blocked():
            self.hurry()

    def _on_alarm(self) -> None:
        self._alarm = None
        try:
            self.look()
            now = self._hub.loop.time()
            self._hub.retained.expire(now)
            self._hub.services.expire(now)
            self._hub.streams.expire(now)
            self._hub.channels.expire(now)
            self._members.expire(now)
            self._hub.flush()
        finally:
            self.arm()

    def _on_beat(self) -> None:
        hub = self._hub
        self.look()
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
        self._members.beat()
        hub.handle(self._pass_time())
        hub.flush()

    def _pass_time(self) -> list[tuple[Any, ...]] | None:
        return self._hub.engine.tick(int(self._hub.loop.time() * 1000))
