"""Requests on shared services: who is asked, who gets the request, and what the requester is told.

A machine: it is told what happened and when, and hands back what is to be done. `sharing` drives it. Every request ends
with exactly one answer without PARTIAL, unless its requester goes or cancels it first. A request for one reply has at most
one provider at work at a time, apart from those that were given up because they took too long. A gathered request leaves
nobody out silently: who is not heard of by a reply, and has not said that it is unwilling, is named in an error.
"""

import heapq
from itertools import count
from math import inf
from typing import Any

import msgspec

from busway.broker.attempts import Action, Answer, Ask, Attempt, Call, Phase, Request
from busway.broker.flags import END, ERROR, FIELDS, PARTIAL
from busway.broker.providers import Provider, Providers
from busway.errors import Code


class Asking:
    """All requests on shared services that are under way, and the providers of those services."""

    def __init__(self, *, each: float, size: int) -> None:
        self._each = each
        self._size = size
        self._calls = count(1)
        self._serial = count()
        self._requests: dict[int, dict[int, Request]] = {}
        self._attempts: dict[int, Attempt] = {}
        self._bytes: dict[int, int] = {}
        self._alarms: list[tuple[float, int, Attempt | Request]] = []
        self.providers = Providers()
        self.pending = 0
        self.late = 0

    # What happens.

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
    ) -> list[Action]:
        """A new request. `each` is the time for one provider (0: the setting), `limit` that for everything (0: none)."""
        own = self._requests.get(conn, {})
        held = self._bytes.get(conn, 0) + len(frame)
        assert number not in own, "the engine lets no number be used twice"
        if held > self._size and own:
            text = f"the requests in flight would have {held} bytes, {self._size} are the limit"
            return [_error(conn, number, Code.TOO_MANY_PENDING, text)]
        deadline = now + limit if limit > 0 else inf
        request = Request(conn, number, topic, frame, gather, each if each > 0 else self._each, limit, deadline)
        self._requests.setdefault(conn, {})[number] = request
        self._bytes[conn] = held
        self.pending += 1
        if limit > 0:
            self._wake(request)
        return self._gather(request, now) if gather else self._go_on(request, now)

    def cancel(self, conn: int, number: int, now: float) -> None:
        """The requester no longer waits."""
        if request := self._requests.get(conn, {}).get(number):
            self._close(request, now)

    def accepted(self, conn: int, call: int, now: float, *, willing: bool) -> list[Action]:
        """A provider's answer to an Ask. One that comes when the request is over is of no interest."""
        attempt = self._attempts.get(call)
        if attempt is None or attempt.provider.conn != conn or attempt.phase is not Phase.ASKED:
            return []
        request = attempt.request
        if not willing:
            self._end(attempt, now)
            return self._go_on(request, now)
        attempt.phase, attempt.deadline = Phase.WILLING, inf
        if request.gather:
            return [self._call(attempt, now)]
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
        if flags & ERROR:
            # To decline is no fault of the provider.
            good = None if code == Code.REFUSED else False
            return self._failed(attempt, code or Code.HANDLER_ERROR, payload, now, good=good)
        request = attempt.request
        if request.gather and not _is_map(fields):
            return self._failed(
                attempt, Code.HANDLER_ERROR, b"the reply has fields that can't be read", now, good=False
            )
        if flags & PARTIAL:
            # More is promised, so its time begins anew.
            attempt.deadline = now + request.each
            return [self._reply(request, attempt.provider, PARTIAL, 0, fields, payload)]
        self._end(attempt, now, good=True)
        if not request.gather or not request.attempts:
            self._close(request, now)
            return [self._reply(request, attempt.provider, flags & END, 0, fields, payload)]
        return [] if flags & END else [self._reply(request, attempt.provider, PARTIAL, 0, fields, payload)]

    def undeliverable(self, call: int, now: float) -> list[Action]:
        """An Ask or Call could not be handed over."""
        attempt = self._attempts.get(call)
        if attempt is None:
            return []
        text = f"the service {attempt.request.topic!r} of {attempt.provider.name} doesn't keep up"
        return self._failed(attempt, Code.TOO_MANY_PENDING, text.encode(), now, good=None)

    def leave(self, conn: int, service: int, now: float) -> list[Action]:
        """A client gives a service up. It finishes what it has, and is asked no more."""
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
        """A connection has ended: what it asked for is stopped, what it was to do is given to others."""
        for request in list(self._requests.get(conn, {}).values()):
            self._close(request, now)
        actions: list[Action] = []
        for provider in self.providers.gone(conn):
            for call in sorted(provider.attempts):
                if (attempt := self._attempts.get(call)) is None:
                    continue
                done = "replied" if attempt.phase is Phase.AT_WORK else "said whether it is willing"
                text = f"the connection of {provider.name} ended before it {done}"
                actions += self._failed(attempt, Code.SERVICE_GONE, text.encode(), now, good=False)
        return actions

    def expire(self, now: float) -> list[Action]:
        """What follows from the time that has passed."""
        actions: list[Action] = []
        while self._alarms and self._alarms[0][0] <= now:
            _, _, item = heapq.heappop(self._alarms)
            if item.over or item.deadline == inf:
                continue
            if item.deadline > now:
                self._wake(item)
            elif isinstance(item, Request):
                actions += self._out_of_time(item, now)
            else:
                text = _late(item, f"{item.request.each:g} s")
                actions += self._failed(item, Code.SERVICE_GONE, text, now, good=False)
        return actions

    def deadline(self) -> float | None:
        """When expire() is to be called next."""
        while self._alarms and self._alarms[0][2].over:
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    # What follows from it.

    def _go_on(self, request: Request, now: float) -> list[Action]:
        """Find the next one, if nobody is at work; the end if there is nobody left."""
        if request.gather:
            return [] if request.attempts else [self._nobody_left(request, now)]
        if any(one.phase is Phase.AT_WORK for one in request.attempts.values()):
            return []
        left = [one for one in self.providers.of(request.topic) if one not in request.tried and one.free(now)]
        plain = [one for one in left if not one.asks]
        if plain:
            provider = min(plain, key=lambda one: one.load(now))
            return [self._call(self._attempt(request, provider, now), now)]
        while request.willing:
            attempt = request.willing.popleft()
            if not attempt.over:
                return [self._call(attempt, now)]
        if request.attempts:
            return []  # somebody has not said yet whether it is willing
        if left:
            return [self._ask(self._attempt(request, one, now)) for one in left]
        return [self._nobody_left(request, now)]

    def _gather(self, request: Request, now: float) -> list[Action]:
        """Everybody who is willing gets it."""
        actions: list[Action] = []
        aside: list[Answer] = []
        for provider in list(self.providers.of(request.topic)):
            if provider.free(now):
                attempt = self._attempt(request, provider, now)
                actions.append(self._ask(attempt) if provider.asks else self._call(attempt, now))
            else:
                text = f"{provider.name} is set aside after {provider.failures} failures"
                aside.append(self._reply(request, provider, ERROR | PARTIAL, Code.SERVICE_GONE, b"", text.encode()))
        if actions:
            return [*actions, *aside]
        return [*self._last(request, aside, now)] if aside else [self._nobody_left(request, now)]

    def _attempt(self, request: Request, provider: Provider, now: float) -> Attempt:
        call = next(self._calls)
        attempt = Attempt(call, request, provider, Phase.ASKED, now, now + request.each)
        self._attempts[call] = request.attempts[call] = attempt
        request.tried.add(provider)
        provider.tried(call)
        self._wake(attempt)
        return attempt

    def _ask(self, attempt: Attempt) -> Ask:
        request, provider = attempt.request, attempt.provider
        request.asked += 1
        return Ask(provider.conn, provider.service, attempt.call, request.conn, request.topic, request.frame)

    def _call(self, attempt: Attempt, now: float) -> Call:
        request, provider = attempt.request, attempt.provider
        if attempt.phase is Phase.WILLING:
            attempt.deadline = now + request.each
            self._wake(attempt)
        attempt.phase, attempt.began = Phase.AT_WORK, now
        provider.begins(now)
        return Call(provider.conn, provider.service, attempt.call, request.conn, request.topic, request.frame)

    def _failed(self, attempt: Attempt, code: int, payload: bytes, now: float, *, good: bool | None) -> list[Action]:
        """One who was at work gives no good answer, or one who was asked none at all."""
        request, at_work = attempt.request, attempt.phase is Phase.AT_WORK
        self._end(attempt, now, good=good)
        if request.gather:
            told = self._reply(request, attempt.provider, ERROR | PARTIAL, code, b"", payload)
            return [told] if request.attempts else [*self._last(request, [told], now)]
        if not at_work:
            return self._go_on(request, now)
        if request.spoken:
            self._close(request, now)
            return [self._reply(request, attempt.provider, ERROR, code, b"", payload)]
        request.error = code, payload.decode(errors="replace")
        return self._go_on(request, now)

    def _out_of_time(self, request: Request, now: float) -> list[Action]:
        """The requester's own limit is over. That those at work took longer than this one allowed is no fault of theirs."""
        time = f"the {request.limit:g} s that the requester gave"
        if request.gather:
            names = [
                self._reply(request, one.provider, ERROR | PARTIAL, Code.SERVICE_GONE, b"", _late(one, time))
                for one in request.attempts.values()
            ]
            return [*self._last(request, names, now)]
        self._close(request, now)
        code, text = request.error or (Code.SERVICE_GONE, f"no answer within {time}")
        return [_error(request.conn, request.number, code, text)]

    def _last(self, request: Request, answers: list[Answer], now: float) -> list[Answer]:
        """Make these the end of the request."""
        self._close(request, now)
        return [*answers[:-1], answers[-1]._replace(flags=answers[-1].flags & ~PARTIAL)]

    def _nobody_left(self, request: Request, now: float) -> Answer:
        self._close(request, now)
        if request.gather and request.spoken:
            return Answer(request.conn, request.number, END, 0, b"", b"")
        if request.error is not None:
            return _error(request.conn, request.number, *request.error)
        aside = sum(not one.free(now) for one in self.providers.of(request.topic))
        text = f"nobody is willing to answer {request.topic!r}: {request.asked} asked, {aside} set aside after failures"
        return _error(request.conn, request.number, Code.NO_RESPONDERS, text)

    def _reply(
        self, request: Request, provider: Provider, flags: int, code: int, fields: bytes, payload: bytes
    ) -> Answer:
        request.spoken = True
        if request.gather and not flags & END:
            values: dict[str, Any] = msgspec.msgpack.decode(fields) if fields else {}
            fields = msgspec.msgpack.encode(values | {".id": provider.name})
        return Answer(request.conn, request.number, flags | (FIELDS if fields else 0), code, fields, payload)

    def _end(self, attempt: Attempt, now: float, *, good: bool | None = None) -> None:
        attempt.over = True
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
        heapq.heappush(self._alarms, (item.deadline, next(self._serial), item))
        # Most end long before their time: without this a long limit would keep them all in memory.
        if len(self._alarms) > 64 + 4 * (len(self._attempts) + self.pending):
            self._alarms = [alarm for alarm in self._alarms if not alarm[2].over]
            heapq.heapify(self._alarms)


def _late(attempt: Attempt, time: str) -> bytes:
    """What is told of a provider whose time is over."""
    missing = "answer within {}" if attempt.phase is Phase.AT_WORK else "say within {} whether it is willing"
    return f"{attempt.provider.name} did not {missing.format(time)}".encode()


def _is_map(fields: bytes) -> bool:
    try:
        return not fields or isinstance(msgspec.msgpack.decode(fields), dict)
    except msgspec.MsgspecError:
        return False


def _error(conn: int, number: int, code: int, text: str) -> Answer:
    return Answer(conn, number, ERROR, code, b"", text.encode())
