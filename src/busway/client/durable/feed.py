"""Bulk feeds: keep many durable publishes in flight, in order, for programs that need no positions of them.

A driver over the durable publisher; Bus.feed() makes it. It sends runs of payloads that share topic and fields, and an
error names its run; or single messages, whose results go to a report.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from busway.client.durable.in_flight import BatchReport
from busway.client.durable.publisher import DurablePublisher
from busway.errors import BusError, Timeout

if TYPE_CHECKING:
    from busway.client.connection.core import Core


class Run(NamedTuple):
    """Consecutive payloads with the same topic and fields. `first` is the caller's own number of the first one."""

    first: int
    topic: str
    payloads: Sequence[bytes | str]
    fields: bytes = b""
    """The encoded fields."""
    time: int = 0
    """Time of sending in nanoseconds since 1970, for a run of one payload; 0: now."""


class RunFailed(Exception):  # noqa: N818 - it is the run that has failed
    """A run was not stored, or only a part of it. `error` is the reason."""

    def __init__(self, run: Run, error: BusError) -> None:
        super().__init__(str(error))
        self.run = run
        self.error = error


class Feed:
    """Stores runs in the order of the calls. Nothing may be sent after an error."""

    def __init__(self, core: "Core", publisher: DurablePublisher, patience: float) -> None:
        self._core = core
        self._publisher = publisher
        self._patience = patience
        self.begin = publisher.begin
        """Send one message, apart from the runs: see DurablePublisher.begin()."""
        self.begin_later = publisher.begin_later
        """Likewise, when there is room and a connection."""
        self._answers: deque[tuple[Sequence[Run], BatchReport]] = deque()

    def skip(self, number: int) -> None:
        """Use no publish number up to this one for later messages."""
        self._core.session.skip(number)

    async def send(self, runs: Iterable[Run]) -> None:
        """Send these as soon as there is room. Raises RunFailed for an earlier run, too, or Timeout."""
        try:
            async with asyncio.timeout(self._patience) as limit:
                for single, group in groupby(runs, _is_single):
                    if single:
                        await self._send_each(list(group), limit)
                    else:
                        await self._send_many(group, limit)
        except TimeoutError as error:
            raise self._timeout() from error

    async def done(self) -> None:
        """Return when all runs are stored. Raises RunFailed or Timeout."""
        try:
            async with asyncio.timeout(self._patience) as limit:
                while self._answers:
                    runs, report = self._answers.popleft()
                    try:
                        await asyncio.shield(report.answer)
                    except BusError as error:
                        raise _failed(runs, report, error) from error
                    self._postpone(limit)
        except TimeoutError as error:
            raise self._timeout() from error

    def _postpone(self, limit: asyncio.Timeout) -> None:
        """Move the time limit after progress. Most calls only read the clock, which is cheaper."""
        now = self._core.loop.time()
        if (limit.when() or 0.0) - now < self._patience / 2:
            limit.reschedule(now + self._patience)

    def _timeout(self) -> Timeout:
        return Timeout(f"the feed failed: the broker has stored nothing for {self._patience:g} s")

    async def _send_many(self, runs: Iterable[Run], limit: asyncio.Timeout) -> None:
        for run in runs:
            try:
                reports = await self._publisher.begin_many(run.topic, run.payloads, run.fields)
            except BusError as error:
                raise RunFailed(run, error) from error
            self._answers.extend(([run], report) for report in reports)
            self._check(limit)

    async def _send_each(self, runs: list[Run], limit: asyncio.Timeout) -> None:
        """Send runs of one payload each."""
        messages = [(topic, payloads[0], fields, time) for _, topic, payloads, fields, time in runs]
        done = 0
        while done < len(runs):
            try:
                report, end = await self._publisher.begin_each(messages, done)
            except BusError as error:
                raise RunFailed(runs[done], error) from error
            self._answers.append((runs[done:end], report))
            done = end
            self._check(limit)

    def _check(self, limit: asyncio.Timeout) -> None:
        """Raise the error of a refused run, if there is one."""
        answers = self._answers
        while answers and answers[0][1].answer.done():
            runs, report = answers.popleft()
            if isinstance(error := report.answer.exception(), BusError):
                raise _failed(runs, report, error)
        self._postpone(limit)


def _is_single(run: Run) -> bool:
    return len(run.payloads) == 1


def _failed(runs: Sequence[Run], report: BatchReport, error: BusError) -> RunFailed:
    failed = RunFailed(runs[report.failed if len(runs) > 1 else 0], error)
    failed.__cause__ = error
    return failed
