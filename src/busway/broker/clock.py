"""The broker's clock: heartbeats, ticks while a slow consumer blocks publishers, and an alarm for the next deadline.

The hub makes it and arms the alarm for its drivers; the server starts and stops it. A node of a cluster that has slept, because its process was
stopped or its host was suspended, closes the connections of its clients before it reads their frames. A client may have
moved to another node and published there again. A client that has not moved reconnects, and resends its unanswered
publishes.
"""

import asyncio
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol

from busway.errors import Code

if TYPE_CHECKING:
    from busway.broker.peers import Members
    from busway.broker.runtime import Runtime

BEATS: Final = 3
"""Beats in one heartbeat. A silent client is pinged after one heartbeat, and closed after three."""
LINKS: Final = 1.0
"""The longest time in seconds between two beats in a cluster, so that lost links are noticed soon."""
TICK: Final = 0.02
"""Seconds between two ticks while a publisher is blocked."""
ASLEEP: Final = 2
"""Heartbeats without a beat after which clients may have moved. They tolerate three, one maybe before the sleep."""


class Timed(Protocol):
    """A driver with deadlines."""

    def deadline(self) -> float | None:
        """When expire() has something to do."""

    def expire(self, now: float) -> None:
        """Do whatever is due."""


class Clock:
    """The timers of one broker. Ticks run only while a publisher is blocked."""

    def __init__(self, runtime: "Runtime", members: "Members", timed: Sequence[Timed]) -> None:
        self._runtime = runtime
        self._members = members
        self._timed = timed
        self._beat: asyncio.TimerHandle | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._beats = BEATS
        self._stopped = False

    def start(self) -> None:
        heartbeat = self._runtime.settings.heartbeat
        seconds = heartbeat / BEATS if not self._members.clustered else min(heartbeat / BEATS, LINKS)
        self._beats = max(round(heartbeat / seconds), 1)
        self._beat = self._runtime.loop.call_later(seconds, self._on_beat)
        if self._members.clustered:  # otherwise clients reconnect to this broker, which recognises resent publishes
            self._runtime.expect(ASLEEP * heartbeat)

    def stop(self) -> None:
        for timer in (self._beat, self._tick, self._alarm):
            if timer is not None:
                timer.cancel()
        self._beat = self._tick = self._alarm = None
        self._stopped = True
        self._runtime.waited_for = inf

    def arm(self) -> None:
        """Set the alarm to the earliest deadline of all drivers. An early alarm is harmless."""
        due = [when for driver in self._timed if (when := driver.deadline()) is not None]
        if not due or self._stopped:
            return
        when = min(due)
        if self._alarm is not None:
            if self._alarm_at <= when:
                return
            self._alarm.cancel()
        self._alarm, self._alarm_at = self._runtime.loop.call_at(when, self._on_alarm), when

    def hurry(self) -> None:
        """Tick until no publisher is blocked."""
        if self._tick is None:
            self._tick = self._runtime.loop.call_later(TICK, self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        self._runtime.check_sleep()
        self._runtime.handle(self._pass_time())
        if self._runtime.engine.blocked():
            self.hurry()

    def _on_alarm(self) -> None:
        self._alarm = None
        try:
            self._runtime.check_sleep()
            now = self._runtime.loop.time()
            for driver in self._timed:
                driver.expire(now)
            self._runtime.flush()
        finally:
            self.arm()

    def _on_beat(self) -> None:
        runtime = self._runtime
        self._runtime.check_sleep()
        self.start()
        runtime.engine.beat()
        for conn in runtime.engine.idle(self._beats * 3):
            session = runtime.sessions.get(conn)
            # A paused session is silent because the broker does not read it. The handshake has its own deadline.
            if session is not None and session.accepted and not session.paused:
                session.close(Code.IDLE, f"no frame received for {runtime.settings.heartbeat * 3:g} s")
        for conn in runtime.engine.waiting():  # the broker has not read the PING of a blocked publisher yet
            runtime.engine.ping(conn, 0)
        for conn in runtime.engine.idle(self._beats):
            session = runtime.sessions.get(conn)
            if session is not None and session.accepted and not session.closing:
                runtime.engine.ping(conn, 0)
        self._members.beat()
        runtime.handle(self._pass_time())
        runtime.flush()

    def _pass_time(self) -> list[tuple[Any, ...]] | None:
        return self._runtime.engine.tick(int(self._runtime.loop.time() * 1000))
