"""Requests on shared services that are under way, with what each provider has of them, and how long it may take.

Part of the machine `asking`, which decides what becomes of them; here they begin, wait, and end.
"""

from itertools import count
from math import inf
from typing import Final

from busway.broker.alarms import Alarms
from busway.broker.attempts import Attempt, Off, Phase, Request
from busway.broker.providers import Provider, Providers

MARGIN: Final = 1.0
"""Seconds that another node has beyond what each of its providers has: for the way, and to tell that it tries the next."""
GRACE: Final = 1.0
"""Seconds beyond its own limit after which a requester that has not cancelled is told: it has given up by itself, unless it is lost."""


class Asked:
    """All requests that are under way, and the providers of their services."""

    def __init__(self, *, each: float, size: int) -> None:
        self._each = each
        self._size = size
        self._calls = count(1)
        self._requests: dict[int, dict[int, Request]] = {}
        self._attempts: dict[int, Attempt] = {}
        self._bytes: dict[int, int] = {}
        self._alarms: Alarms[Attempt | Request] = Alarms()
        self._offs: list[Off] = []
        self.providers = Providers()
        self.pending = 0
        self.late = 0

    def take_offs(self) -> list[Off]:
        """What other nodes need not go on with, since this was asked last."""
        offs, self._offs = self._offs, []
        return offs

    def deadline(self) -> float | None:
        """When expire() is to be called next."""
        return self._alarms.first()

    # Their beginning and their end.

    def _enter(self, request: Request) -> str | None:
        """Into the books; or why not."""
        conn, own = request.conn, self._requests.get(request.conn, {})
        held = self._bytes.get(conn, 0) + len(request.frame)
        if held > self._size and own:
            return f"the requests in flight would have {held} bytes, {self._size} are the limit"
        self._requests.setdefault(conn, {})[request.number] = request
        self._bytes[conn] = held
        self.pending += 1
        if request.deadline < inf:
            self._wake(request)
        return None

    def _attempt(self, request: Request, provider: Provider, now: float) -> Attempt:
        call = next(self._calls)
        attempt = Attempt(call, request, provider, Phase.ASKED, now, inf)
        self._attempts[call] = request.attempts[call] = attempt
        request.tried.add(provider)
        provider.tried(call)
        self._give_time(attempt, now)
        return attempt

    def _give_time(self, attempt: Attempt, now: float) -> None:
        asleep = attempt.deadline == inf
        before, attempt.deadline = attempt.deadline, now + attempt.request.each + MARGIN * attempt.provider.far
        if asleep or attempt.deadline < before:
            self._wake(attempt)

    def _end(self, attempt: Attempt, now: float, *, good: bool | None = None) -> None:
        attempt.over = True
        if attempt.provider.far and not attempt.settled:
            self._offs.append(Off(attempt.provider.conn, attempt.call))
        del self._attempts[attempt.call]
        del attempt.request.attempts[attempt.call]
        provider = attempt.provider
        if attempt.phase is Phase.AT_WORK:
            provider.ends(attempt.began, now)
        provider.over(attempt.call, now, good=good)
        self.providers.tidy(provider)

    def _close(self, request: Request, now: float) -> None:
        """The request is over; whatever else is said about it comes too late."""
        if request.over:
            return
        request.over = True
        for attempt in list(request.attempts.values()):
            self._end(attempt, now)
        own = self._requests[request.conn]
        del own[request.number]
        self._bytes[request.conn] -= len(request.frame)
        if not own:
            del self._requests[request.conn], self._bytes[request.conn]
        self.pending -= 1

    def _wake(self, item: Attempt | Request) -> None:
        self._alarms.add(item, len(self._attempts) + self.pending)
