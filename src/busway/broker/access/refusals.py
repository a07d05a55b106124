"""Refusals: counts, logs and reports what clients were not allowed to do, at most once per second and connection.

The engine refuses messages, and drivers refuse slower work; both end here.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from busway._core import VERBS

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime

log = logging.getLogger("busway.broker")

TOPIC: Final = "$bus/auth/refused"
_PAUSE: Final = 1.0
"""Seconds between two reports about one connection."""
_MOST: Final = 10_000
"""Users that are counted by name."""
OTHERS: Final = "(others)"

Tell = Callable[[str, Mapping[str, Any], str], None]
"""Publishes an event: its topic, fields and text."""


class Refusals:
    """What the clients of one broker were refused."""

    def __init__(self, runtime: "Runtime", tell: Tell) -> None:
        self._runtime = runtime
        self._tell = tell
        self.by_user: Counter[str] = Counter()
        self.logins: Counter[str] = Counter()
        """Refused logins, by claimed user."""
        self._logged = -_PAUSE
        self._silent = 0

    def refused(self, event: tuple[Any, ...]) -> None:
        """The engine has refused something: report it, and what else is refused within a second."""
        _, conn, verb, topic = event
        session = self._runtime.sessions.get(conn)
        if session is None:
            return
        self._count(self.by_user, session.user, 1)
        log.warning(
            "client %d (%r) of user %r may not %s %r",
            session.client,
            session.name,
            session.user,
            VERBS[verb],
            topic,
            extra={"user": session.user, "verb": VERBS[verb], "topic": topic},
        )
        self._tell(
            TOPIC,
            {"user": session.user, "client": session.name, "verb": VERBS[verb], "topic": topic},
            f"{session.user} may not {VERBS[verb]} {topic}",
        )
        self._runtime.loop.call_later(_PAUSE, self._settle, conn, session.client)

    def _settle(self, conn: int, client: int) -> None:
        session = self._runtime.sessions.get(conn)
        if session is None or session.client != client:
            return
        more = self._runtime.engine.take_refusals(conn) - 1
        if more > 0:
            self._count(self.by_user, session.user, more)
            log.warning("client %d of user %r: %d more refusals within a second", client, session.user, more)

    def login(self, user: str, address: str, reason: str) -> None:
        """A login was refused. Only one is logged per second, with the number of the others."""
        self._runtime.refused += 1
        self._count(self.logins, user, 1)
        now = self._runtime.loop.time()
        if now - self._logged < _PAUSE:
            self._silent += 1
            return
        more = f" ({self._silent} more since the last line)" if self._silent else ""
        self._logged, self._silent = now, 0
        where = f" from {address}" if address else ""
        log.warning("login of %r%s refused: %s%s", user, where, reason, more, extra={"user": user, "address": address})
        fields = {"user": user, "address": address, "verb": "login"}
        self._tell(TOPIC, fields, f"login of {user!r} refused: {reason}")

    @staticmethod
    def _count(counter: Counter[str], user: str, count: int) -> None:
        counter[user if user in counter or len(counter) < _MOST else OTHERS] += count
