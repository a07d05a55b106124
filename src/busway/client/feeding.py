"""Many durable publishes on their way at once, in order, for whoever wants to know of each that it was stored but not where.

A driver over storing.py. Rows go out in runs that share topic and fields; an error says of which run it is.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from busway.client.storing import Unstored
from busway.errors import BusError, Timeout

if TYPE_CHECKING:
    from busway.client.core import Core


@dataclass(frozen=True, slots=True)
class Run:
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

    def __init__(self, core: "Core", unstored: Unstored, patience: float) -> None:
        self._core = core
        self._unstored = unstored
        self._patience = patience
        self._answers: deque[tuple[Run, asyncio.Future[Any]]] = deque()

    def skip(self, number: int) -> None:
        """Give no message a number up to this one."""
        self._core.session.skip(number)

    async def send(self, runs: Iterable[Run]) -> None:
        """Send these as soon as there is room; what was refused meanwhile is raised. RunFailed, Timeout."""
        try:
            async with asyncio.timeout(self._patience) as limit:
                for run in runs:
                    try:
                        await self._begin(run)
                    except BusError as error:
                        raise RunFailed(run, error) from error
                    self._look()
                    self._postpone(limit)
        except TimeoutError as error:
            raise self._timeout() from error

    async def done(self) -> None:
        """Return when everything is stored. RunFailed, Timeout."""
        try:
            async with asyncio.timeout(self._patience) as limit:
                while self._answers:
                    run, answer = self._answers.popleft()
                    await self._wait(run, answer)
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

    async def _begin(self, run: Run) -> None:
        if len(run.payloads) == 1:
            answer = await self._unstored.begin_one(run.topic, run.payloads[0], run.fields, run.time)
            self._answers.append((run, answer))
        else:
            for many in await self._unstored.begin_many(run.topic, run.payloads, run.fields):
                self._answers.append((run, many))

    def _look(self) -> None:
        answers = self._answers
        while answers and answers[0][1].done():
            run, answer = answers.popleft()
            if isinstance(error := answer.exception(), BusError):
                raise RunFailed(run, error) from error

    async def _wait(self, run: Run, answer: "asyncio.Future[Any]") -> None:
        try:
            await asyncio.shield(answer)
        except BusError as error:
            raise RunFailed(run, error) from error
