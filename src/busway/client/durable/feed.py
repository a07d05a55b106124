"""Many durable publishes on their way at once, in order, for whoever wants to know of each that it was stored but not where.

A driver over storing.py. Rows go out in runs that share topic and fields; an error says of which run it is.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from busway.client.durable.in_flight import Alone, MixedBatch, Refused, ReportedBatch, Row, Stored
from busway.client.durable.publisher import DurablePublisher
from busway.errors import BusError, Timeout

if TYPE_CHECKING:
    from busway.client.connection.core import Core


class Run(NamedTuple):
    """Payloads with the same topic and fields, one after the other. `first` is the caller's number of the first one."""

    first: int
    topic: str
    payloads: Sequence[bytes | str]
    fields: bytes = b""
    """As they are on the wire."""
    time: int = 0
    """When it was sent, in nanoseconds since 1970, if the run has one payload; 0: now."""


class RunFailed(Exception):  # noqa: N818 - it is the run that has failed
    """A run could not be stored, or not all of it; why is its cause."""

    def __init__(self, run: Run, error: BusError) -> None:
        super().__init__(str(error))
        self.run = run
        self.error = error


class Feed:
    """Stores runs in the order they are given. Nothing may be sent after an error."""

    def __init__(self, core: "Core", unstored: DurablePublisher, patience: float) -> None:
        self._core = core
        self._unstored = unstored
        self._patience = patience
        self._answers: deque[tuple[Sequence[Run], asyncio.Future[Any], MixedBatch | None]] = deque()

    def skip(self, number: int) -> None:
        """Give no message a number up to this one."""
        self._core.session.skip(number)

    def teller(self, stored: Stored, refused: Refused) -> "ReportedFeed":
        """A way to send single messages without anything to await, apart from the runs."""
        return ReportedFeed(self._unstored, stored, refused)

    async def send(self, runs: Iterable[Run]) -> None:
        """Send these as soon as there is room; what was refused meanwhile is raised. RunFailed, Timeout."""
        try:
            async with asyncio.timeout(self._patience) as limit:
                for single, some in groupby(runs, _is_single):
                    if single:
                        await self._send_each(list(some), limit)
                    else:
                        await self._send_many(some, limit)
        except TimeoutError as error:
            raise self._timeout() from error

    async def done(self) -> None:
        """Return when everything is stored. RunFailed, Timeout."""
        try:
            async with asyncio.timeout(self._patience) as limit:
                while self._answers:
                    runs, answer, mixed = self._answers.popleft()
                    try:
                        await asyncio.shield(answer)
                    except BusError as error:
                        raise _failed(runs, mixed, error) from error
                    self._postpone(limit)
        except TimeoutError as error:
            raise self._timeout() from error

    def _postpone(self, limit: asyncio.Timeout) -> None:
        """Something was done; moving the limit costs more than looking at the clock."""
        now = self._core.loop.time()
        if (limit.when() or 0.0) - now < self._patience / 2:
            limit.reschedule(now + self._patience)

    def _timeout(self) -> Timeout:
        return Timeout(f"the broker has stored nothing for {self._patience:g} s")

    async def _send_many(self, runs: Iterable[Run], limit: asyncio.Timeout) -> None:
        for run in runs:
            try:
                answers = await self._unstored.begin_many(run.topic, run.payloads, run.fields)
            except BusError as error:
                raise RunFailed(run, error) from error
            self._answers.extend(([run], answer, None) for answer in answers)
            self._look(limit)

    async def _send_each(self, runs: list[Run], limit: asyncio.Timeout) -> None:
        """Runs of one payload each, which differ."""
        messages = [Alone(topic, payloads[0], fields, time) for _, topic, payloads, fields, time in runs]
        done = 0
        while done < len(runs):
            try:
                mixed, end = await self._unstored.begin_each(messages, done)
            except BusError as error:
                raise RunFailed(runs[done], error) from error
            self._answers.append((runs[done:end], mixed.answer, mixed))
            done = end
            self._look(limit)

    def _look(self, limit: asyncio.Timeout) -> None:
        """Raise what was refused."""
        answers = self._answers
        while answers and answers[0][1].done():
            runs, answer, mixed = answers.popleft()
            if isinstance(error := answer.exception(), BusError):
                raise _failed(runs, mixed, error)
        self._postpone(limit)


class ReportedFeed:
    """Sends messages one by one. What became of them is told in the moment in which the broker's answer is read.

    `stored` is called with those that it has stored one after the other, and the place of the first; `refused` with one, and why.
    """

    begin: Callable[[Row], bool]
    """Send one: topic, payload, fields as they are on the wire, and whatever the caller wants to have back.

    False: there is no room, or no connection; publish() of the bus waits for that.
    """

    def __init__(self, unstored: DurablePublisher, stored: Stored, refused: Refused) -> None:
        self.begin = partial(unstored.begin, ReportedBatch(stored, refused))


def _is_single(run: Run) -> bool:
    return len(run.payloads) == 1


def _failed(runs: Sequence[Run], mixed: MixedBatch | None, error: BusError) -> RunFailed:
    failed = RunFailed(runs[mixed.refused if mixed is not None else 0], error)
    failed.__cause__ = error
    return failed
