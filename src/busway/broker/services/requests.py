"""Requests on shared services: chooses the providers that are asked and called, and the answers of the requester.

This is a machine: it gets events with their time, and returns actions. `services.driver` drives it. Every request ends
with exactly one answer without PARTIAL, unless its requester leaves or cancels it first. A request for one reply has at
most one provider at work at a time, apart from those that exceeded their time. A gathered request names in an error
each provider that neither replied nor declined.

Another node is one provider for all its clients that share a service. It comes after the clients of this node, is asked
and called like them, and asks and calls its own clients. A request from another node goes only to clients of this one.
"""

from collections import deque
from itertools import count
from math import inf
from typing import Any, Final

import msgspec

from busway.broker.deadlines import Deadlines
from busway.broker.flags import END, ERROR, FIELDS, PARTIAL
from busway.broker.services.actions import (
    Action,
    Answer,
    Ask,
    Attempt,
    Call,
    CancelCall,
    Failure,
    Moved,
    Phase,
    Request,
    Terms,
    Willing,
    error,
    failed,
    is_map,
    late,
)
from busway.broker.services.providers import Provider, Providers
from busway.errors import Code
from busway.settings import Scope

MARGIN: Final = 1.0
"""Seconds that another node has beyond the limit of each of its providers, for the network and for a Moved."""
GRACE: Final = 1.0
"""Seconds beyond the requester's limit until the broker ends a request that was not cancelled."""


class PendingRequests:
    """All requests in flight, their attempts, and the providers of their services."""

    def __init__(self, *, each: float, size: int) -> None:
        self._each = each
        self._size = size
        self._calls = count(1)
        self._requests: dict[int, dict[int, Request]] = {}
        self._attempts: dict[int, Attempt] = {}
        self._bytes: dict[int, int] = {}
        self._alarms: Deadlines[Attempt | Request] = Deadlines()
        self._cancelled: list[CancelCall] = []
        self.providers = Providers()
        self.pending = 0
        self.late = 0

    def cancelled_calls(self) -> list[CancelCall]:
        """The attempts of other nodes that were cancelled since the last call of this function."""
        cancelled, self._cancelled = self._cancelled, []
        return cancelled

    def deadline(self) -> float | None:
        """The time at which expire() has to be called next."""
        return self._alarms.first()

    # Begin and end of requests and attempts.

    def _enter(self, request: Request) -> str | None:
        """Register the request. Returns the reason if a limit refuses it."""
        conn, own = request.conn, self._requests.get(request.conn, {})
        held = self._bytes.get(conn, 0) + len(request.frame)
        if held > self._size and own:
            return (
                f"the requests in flight would have {held} bytes, the limit is {self._size}; await some replies first"
            )
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
        before, attempt.deadline = attempt.deadline, now + attempt.request.each + MARGIN * attempt.provider.remote
        if asleep or attempt.deadline < before:
            self._wake(attempt)

    def _end(self, attempt: Attempt, now: float, *, good: bool | None = None) -> None:
        attempt.over = True
        if attempt.provider.remote and not attempt.finished:
            self._cancelled.append(CancelCall(attempt.provider.conn, attempt.call))
        del self._attempts[attempt.call]
        del attempt.request.attempts[attempt.call]
        provider = attempt.provider
        if attempt.phase is Phase.AT_WORK:
            provider.ends(attempt.began, now)
        provider.over(attempt.call, now, good=good)
        self.providers.tidy(provider)

    def _close(self, request: Request, now: float) -> None:
        """End a request and all its attempts. Later answers are ignored."""
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


class SharedRequests(PendingRequests):
    """The machine of shared requests: its methods take events and return actions."""

    # Events.

    def request(
        self,
        conn: int,
        number: int,
        topic: str,
        frame: bytes,
        now: float,
        *,
        gather: bool = False,
        each: float = 0.0,
        limit: float = 0.0,
        scope: Scope = "global",
        remote: bool = False,
    ) -> list[Action]:
        """A new request. `each` is the time limit of one provider (0: the setting), `limit` of the request (0: none).

        The requester applies its limit itself. A gathered request ends at the limit, with an error for each late
        provider. Any other request ends a while later, so that the answer does not race with the requester's own
        timeout.
        """
        if (asked := self._requests.get(conn, {}).get(number)) is not None:
            assert asked.asking, "the engine refuses a number that is in use"
            asked.asking, asked.begun, asked.deadline = False, False, inf
            return self._begin(asked, now)
        deadline = now + limit + (0.0 if gather else GRACE) if limit > 0 else inf
        each = each if each > 0 else self._each
        request = Request(conn, number, topic, frame, gather, each, limit, deadline, scope=scope, remote=remote)
        if (text := self._enter(request)) is not None:
            return [error(conn, number, Code.TOO_MANY_PENDING, text)]
        return self._begin(request, now)

    def ask(self, conn: int, number: int, topic: str, frame: bytes, now: float) -> list[Action]:
        """Another node asks whether a provider here accepts a request. The request follows with the same number."""
        if number in self._requests.get(conn, {}):
            return []
        request = Request(conn, number, topic, frame, False, self._each, 0.0, inf, remote=True, asking=True)
        if self._enter(request) is not None:
            return [Willing(conn, number, Code.REFUSED)]
        return self._begin(request, now)

    def terms(self, conn: int, number: int, each: float, now: float) -> None:
        """The time limit for each provider, for a request that has just come from another node."""
        request = self._requests.get(conn, {}).get(number)
        if request is None or not 0 < each < inf:
            return
        request.each = each
        for attempt in request.attempts.values():
            if attempt.phase is not Phase.WILLING:
                self._give_time(attempt, now)

    def moved(self, conn: int, call: int, now: float) -> None:
        """Another node has moved the request to the next of its providers."""
        attempt = self._attempts.get(call)
        if attempt is not None and attempt.provider.conn == conn and attempt.phase is not Phase.WILLING:
            self._give_time(attempt, now)

    def cancel(self, conn: int, number: int, now: float) -> None:
        """The requester has cancelled a request."""
        if request := self._requests.get(conn, {}).get(number):
            self._close(request, now)

    def accepted(self, conn: int, call: int, now: float, *, willing: bool) -> list[Action]:
        """A provider's answer to an Ask. It is ignored if the request has ended."""
        attempt = self._attempts.get(call)
        if attempt is None or attempt.provider.conn != conn or attempt.phase is not Phase.ASKED:
            return []
        request = attempt.request
        if not willing:
            attempt.finished = True
            self._end(attempt, now)
            return self._go_on(request, now)
        attempt.phase, attempt.deadline = Phase.WILLING, inf
        if request.gather:
            return self._move(request, *self._call(attempt, now))
        request.willing.append(attempt)
        return self._go_on(request, now)

    def answered(
        self, conn: int, call: int, flags: int, code: int, fields: bytes, payload: bytes, now: float
    ) -> list[Action]:
        """A provider's reply."""
        attempt = self._attempts.get(call)
        if attempt is None or attempt.provider.conn != conn or attempt.phase is not Phase.AT_WORK:
            self.late += 1
            return []
        request, remote = attempt.request, attempt.provider.remote
        attempt.finished = not flags & PARTIAL
        if request.gather and not is_map(fields):
            return self._failed(
                attempt, Failure(Code.HANDLER_ERROR, b"", b"the reply has fields that can't be read"), now, good=False
            )
        if flags & ERROR and remote and request.gather and (fields or flags & PARTIAL):
            # The failure of one client of that node; its fields name the client.
            return self._client_failed(attempt, flags & PARTIAL, code, fields, payload, now)
        if flags & ERROR:
            attempt.finished = True
            if remote and code == Code.NO_RESPONDERS:
                self._end(attempt, now, good=True)
                return self._go_on(request, now)
            # Declining is no failure of the provider, and a node that answers works.
            good = True if remote else None if code == Code.REFUSED else False
            return self._failed(attempt, Failure(code or Code.HANDLER_ERROR, fields, payload), now, good=good)
        if flags & PARTIAL:
            # More parts follow, so the time limit of the provider begins anew.
            self._give_time(attempt, now)
            return [self._reply(request, attempt.provider, PARTIAL, 0, fields, payload)]
        self._end(attempt, now, good=True)
        if not request.gather or not request.attempts:
            self._close(request, now)
            return [self._reply(request, attempt.provider, flags & END, 0, fields, payload)]
        return [] if flags & END else [self._reply(request, attempt.provider, PARTIAL, 0, fields, payload)]

    def undeliverable(self, call: int, now: float, *, gone: bool) -> list[Action]:
        """An Ask or Call could not be sent. `gone`: because the connection is ending; a call of gone() follows."""
        attempt = self._attempts.get(call)
        if attempt is None:
            return []
        attempt.finished = True
        if gone:
            text = f"the connection of {attempt.provider.name} ended before it had the request"
            return self._failed(attempt, Failure(Code.SERVICE_GONE, b"", text.encode()), now, good=None)
        size = len(attempt.request.frame)
        why = f"doesn't keep up, or takes no message of {size} bytes" if attempt.provider.remote else "doesn't keep up"
        text = f"the service {attempt.request.topic!r} of {attempt.provider.name} {why}"
        return self._failed(attempt, Failure(Code.TOO_MANY_PENDING, b"", text.encode()), now, good=None)

    def leave(self, conn: int, service: int, now: float) -> list[Action]:
        """A client stops providing a service. It finishes its calls in flight, and gets no new ones."""
        provider = self.providers.leave(conn, service)
        if provider is None:
            return []
        actions: list[Action] = []
        for call in sorted(provider.attempts):
            attempt = self._attempts.get(call)
            if attempt is not None and attempt.phase is not Phase.AT_WORK:
                self._end(attempt, now)
                actions += self._go_on(attempt.request, now)
        return actions

    def gone(self, conn: int, now: float) -> list[Action]:
        """A connection has ended: its requests end, and its attempts fail over to other providers."""
        for request in list(self._requests.get(conn, {}).values()):
            self._close(request, now)
        actions: list[Action] = []
        for provider in self.providers.gone(conn):
            for call in sorted(provider.attempts):
                if (attempt := self._attempts.get(call)) is None:
                    continue
                attempt.finished = True
                done = "replied" if attempt.phase is Phase.AT_WORK else "said whether it is willing"
                text = f"the connection of {provider.name} ended before it {done}"
                failure = Failure(Code.SERVICE_GONE, b"", text.encode())
                actions += self._failed(attempt, failure, now, good=False)
        return actions

    def expire(self, now: float) -> list[Action]:
        """End the requests and attempts whose time is over."""
        actions: list[Action] = []
        while (item := self._alarms.due(now)) is not None:
            if isinstance(item, Request):
                actions += self._out_of_time(item, now)
            else:
                text = late(item, f"{item.request.each:g} s")
                actions += self._failed(item, Failure(Code.SERVICE_GONE, b"", text), now, good=False)
        return actions

    # Consequences.

    def _begin(self, request: Request, now: float) -> list[Action]:
        actions = self._gather(request, now) if request.gather else self._go_on(request, now)
        request.begun = True
        return actions

    def _go_on(self, request: Request, now: float) -> list[Action]:
        """Choose the next provider if none is at work, or end the request if none is left."""
        if request.gather:
            return [] if request.attempts else [self._none_left(request, now)]
        if request.promised and request.asking:
            return []
        if any(attempt.phase is Phase.AT_WORK for attempt in request.attempts.values()):
            return []
        candidates = self._candidates(request)
        left = [provider for provider in candidates if provider not in request.tried and provider.free(now)]
        local = [provider for provider in left if not provider.remote]
        # Other nodes follow when no provider is left here, also none whose answer to an Ask is missing.
        for some in (local, [provider for provider in left if provider.remote]):
            plain = [provider for provider in some if not provider.asks]
            if plain and request.asking:
                return [self._promise(request, now)]
            if plain:
                provider = min(plain, key=lambda provider: provider.load(now))
                return self._move(request, *self._call(self._attempt(request, provider, now), now))
            request.willing = deque(attempt for attempt in request.willing if not attempt.over)
            if request.willing and request.asking:
                return [self._promise(request, now)]
            if request.willing:
                return self._move(request, *self._call(request.willing.popleft(), now))
            if request.attempts:
                return []  # an answer to an Ask is missing
            if some:
                asks = (ask for provider in some for ask in self._ask(self._attempt(request, provider, now)))
                return self._move(request, *asks)
        return [self._none_left(request, now)]

    def _candidates(self, request: Request) -> list[Provider]:
        return [provider for provider in self.providers.of(request.topic) if request.may_go_to(provider)]

    def _move(self, request: Request, *actions: Action) -> list[Action]:
        """The next steps of a request, with a report to the node that waits for it."""
        report = [Moved(request.conn, request.number)] if request.remote and request.begun else []
        return [*actions, *report]

    def _promise(self, request: Request, now: float) -> Willing:
        """Answer that a provider accepts the request, which stays registered for a while until the node sends it."""
        request.promised, request.deadline = True, now + request.each
        self._wake(request)
        return Willing(request.conn, request.number, Code.OK)

    def _gather(self, request: Request, now: float) -> list[Action]:
        """Send a gathered request to all providers that accept it."""
        actions: list[Action] = []
        aside: list[Answer] = []
        for provider in self._candidates(request):
            if provider.free(now):
                attempt = self._attempt(request, provider, now)
                # A node asks its clients itself.
                asks = provider.asks and not provider.remote
                actions += self._ask(attempt) if asks else self._call(attempt, now)
            else:
                text = f"{provider.name} is set aside after {provider.failures} failures"
                aside.append(self._reply(request, provider, ERROR | PARTIAL, Code.SERVICE_GONE, b"", text.encode()))
        if actions:
            return [*actions, *aside]
        return [*self._last(request, aside, now)] if aside else [self._none_left(request, now)]

    def _ask(self, attempt: Attempt) -> list[Action]:
        request, provider = attempt.request, attempt.provider
        request.asked += 1
        ask = Ask(provider.conn, provider.service, attempt.call, request.conn, request.topic, request.frame)
        return [ask, *self._terms(attempt)]

    def _call(self, attempt: Attempt, now: float) -> list[Action]:
        request, provider = attempt.request, attempt.provider
        if attempt.phase is Phase.WILLING:
            self._give_time(attempt, now)
        attempt.phase, attempt.began = Phase.AT_WORK, now
        provider.begins(now)
        call = Call(provider.conn, provider.service, attempt.call, request.conn, request.topic, request.frame)
        return [call, *self._terms(attempt)]

    def _terms(self, attempt: Attempt) -> list[Terms]:
        if not attempt.provider.remote:
            return []
        return [Terms(attempt.provider.conn, attempt.call, attempt.request.each)]

    def _failed(self, attempt: Attempt, failure: Failure, now: float, *, good: bool | None) -> list[Action]:
        """Handle a failed attempt: report it, fail over to the next provider, or end the request."""
        request, at_work = attempt.request, attempt.phase is Phase.AT_WORK
        self._end(attempt, now, good=good)
        if request.gather:
            answer = self._reply(request, attempt.provider, ERROR | PARTIAL, *failure)
            return [answer] if request.attempts else [*self._last(request, [answer], now)]
        if not at_work:
            return self._go_on(request, now)
        if request.spoken:
            self._close(request, now)
            return [self._reply(request, attempt.provider, ERROR, *failure)]
        request.error = failure._replace(payload=failure.payload.decode(errors="replace").encode())
        return self._go_on(request, now)

    def _client_failed(
        self, attempt: Attempt, partial: int, code: int, fields: bytes, payload: bytes, now: float
    ) -> list[Action]:
        """Handle the failure of one client of another node. `partial`: that node has more clients at work."""
        request = attempt.request
        answer = self._reply(request, attempt.provider, ERROR | PARTIAL, code, fields, payload)
        if partial:
            self._give_time(attempt, now)
            return [answer]
        self._end(attempt, now, good=True)
        return [answer] if request.attempts else [*self._last(request, [answer], now)]

    def _out_of_time(self, request: Request, now: float) -> list[Action]:
        """End a request at the requester's own limit. That counts as no failure of the providers at work."""
        if request.asking:
            self._close(request, now)  # the node has chosen another provider
            return []
        time = f"the {request.limit:g} s that the requester gave"
        if request.gather:
            names = [
                self._reply(request, attempt.provider, ERROR | PARTIAL, Code.SERVICE_GONE, b"", late(attempt, time))
                for attempt in request.attempts.values()
            ]
            return [*self._last(request, names, now)]
        self._close(request, now)
        failure = request.error or Failure(Code.SERVICE_GONE, b"", f"no answer within {time}".encode())
        return [failed(request.conn, request.number, failure)]

    def _last(self, request: Request, answers: list[Answer], now: float) -> list[Answer]:
        """End the request with these answers."""
        self._close(request, now)
        return [*answers[:-1], answers[-1]._replace(flags=answers[-1].flags & ~PARTIAL)]

    def _none_left(self, request: Request, now: float) -> Answer | Willing:
        self._close(request, now)
        if request.asking:
            return Willing(request.conn, request.number, Code.REFUSED)
        if request.gather and request.spoken:
            return Answer(request.conn, request.number, END, 0, b"", b"")
        if request.error is not None:
            return failed(request.conn, request.number, request.error)
        aside = sum(not provider.free(now) for provider in self._candidates(request))
        text = f"nobody is willing to answer {request.topic!r}: {request.asked} asked, {aside} set aside after failures"
        return error(request.conn, request.number, Code.NO_RESPONDERS, text)

    def _reply(
        self, request: Request, provider: Provider, flags: int, code: int, fields: bytes, payload: bytes
    ) -> Answer:
        request.spoken = True
        if request.gather and not flags & END:
            values: dict[str, Any] = msgspec.msgpack.decode(fields) if fields else {}
            # The reply of another node names its client already.
            fields = msgspec.msgpack.encode(
                {".id": provider.name} | values if provider.remote else values | {".id": provider.name}
            )
        return Answer(request.conn, request.number, flags | (FIELDS if fields else 0), code, fields, payload)
