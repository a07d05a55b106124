"""The broker's clock: heartbeats, ticks while a slow consumer blocks publishers, and an alarm for the next deadline.

The server starts it, and the hub and the sessions call it. A node of a cluster that has slept, because its process was
stopped or its host was suspended, closes the connections of its clients before it reads their frames. A client may have
moved to another node and published there again. A client that has not moved reconnects, and resends its unanswered
publishes.
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
"""Beats in one heartbeat. A silent client is pinged after one heartbeat, and closed after three."""
LINKS: Final = 1.0
"""The longest time in seconds between two beats in a cluster, so that lost links are noticed soon."""
TICK: Final = 0.02
"""Seconds between two ticks while a publisher is blocked."""
ASLEEP: Final = 2
"""Heartbeats without a beat after which clients may have moved. They tolerate three, one maybe before the sleep."""


class Timed(Protocol):
    """A part of the hub with a deadline."""

    def deadline(self) -> float | None: ...


class Clock:
    """The timers of one hub. Ticks run only while a publisher is blocked."""

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
        """Before this time no client has moved after a sleep. By the clock that also runs while the host sleeps."""

    def start(self) -> None:
        heartbeat = self._hub.settings.heartbeat
        seconds = heartbeat / BEATS if not self._members.clustered else min(heartbeat / BEATS, LINKS)
        self._beats = max(round(heartbeat / seconds), 1)
        self._beat = self._hub.loop.call_later(seconds, self._on_beat)
        if self._members.clustered:  # otherwise clients reconnect to this broker, which recognises resent publishes
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
        """Set the alarm to the earliest deadline of all parts of the hub. An early alarm is harmless."""
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

    def check_sleep(self) -> None:
        """Abort the connections of all clients if this broker has slept for so long that they may have moved.

        After a sleep the event loop may read before it runs its timers, so sessions call this before they read. Clients
        in this process have slept, too, and links have their own check.
        """
        if (now := environment.boottime()) <= self.waited_for:
            return
        slept, self.waited_for = now - self._awake, inf  # until the next beat, which is due
        sessions = [
            session
            for session in self._hub.everyone
            if session.accepted and not session.node and session.scheme != "memory"
        ]
        for session in sessions:
            session.why, session.fault = "idle", f"this broker slept for {slept:.3g} s"
            session.abort()
        log.warning("this broker slept for %.3g s: %d clients have to reconnect", slept, len(sessions))

    def hurry(self) -> None:
        """Tick until no publisher is blocked."""
        if self._tick is None:
            self._tick = self._hub.loop.call_later(TICK, self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        self.check_sleep()
        self._hub.handle(self._pass_time())
        if self._hub.engine.blocked():
            self.hurry()

    def _on_alarm(self) -> None:
        self._alarm = None
        try:
            self.check_sleep()
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
        self.check_sleep()
        self.start()
        hub.engine.beat()
        for conn in hub.engine.idle(self._beats * 3):
            session = hub.sessions.get(conn)
            # A paused session is silent because the broker does not read it. The handshake has its own deadline.
            if session is not None and session.accepted and not session.paused:
                session.close(Code.IDLE, f"no frame received for {hub.settings.heartbeat * 3:g} s")
        for conn in hub.engine.waiting():  # the broker has not read the PING of a blocked publisher yet
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
