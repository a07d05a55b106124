"""The stream `dead`, which stores dead letters without limits: creates it before the first dead letter is stored.

An operator's stream that claims the dead-letter topic is used instead. If `dead` can't be created, because its name or
a part of its topics is in use, the stream `default` stores the letters, as for any other topic that no stream claims.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from busway._core import matches
from busway.broker.streams.table import StreamTable
from busway.errors import BusError, DataFailed
from busway.streams import DEAD, DEAD_TOPICS, StreamConfig

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime

log = logging.getLogger("busway.broker")

_SOON: Final = 0.02
"""Seconds until a channel retries while the stream is being created."""
_RETRY: Final = 1.0
"""Seconds until a channel retries after the stream could not be created."""


class DeadStream:
    """Creates the stream `dead` of one broker when a dead letter needs it."""

    def __init__(
        self,
        runtime: "Runtime",
        streams: StreamTable,
        create: Callable[[StreamConfig], Awaitable[object]],
    ) -> None:
        self._runtime = runtime
        self._streams = streams
        self._create = create
        self._making: asyncio.Task[None] | None = None
        self._failed: str | None = None
        """The error of the disk when the stream was created; None: there was none."""
        self._refused: tuple[int, str] | None = None
        """Why the stream can't be created, after the count of stream changes at which that was tried."""

    def stop(self) -> None:
        if self._making is not None:
            self._making.cancel()

    def missing_for(self, topic: str) -> float | None:
        """Seconds until a letter of this topic has to be retried, because its stream is missing. None: store it now."""
        if not matches(topic, DEAD_TOPICS) or self._streams.taking(topic) is not None:
            return None
        if self._refused is not None and self._refused[0] == self._streams.changes.count:
            return None
        if self._making is None:
            self._making = self._runtime.loop.create_task(self._make(), name="busway dead letters")
        return _SOON if self._failed is None else _RETRY

    async def _make(self) -> None:
        streams = self._streams
        safe = "synced" if streams.best == "disk" else "written"
        config = StreamConfig.make(DEAD, topics=[DEAD_TOPICS], store=streams.best, safety=safe, max_age=None)
        try:
            await self._create(config)
            self._failed = None
        except DataFailed as error:
            if error.reason != self._failed:
                log.warning("dead letters can't be stored and stay with their channels: %s", error.reason)
            self._failed = error.reason
        except BusError as error:
            before, self._refused = self._refused, (streams.changes.count, error.reason)
            if before is None or before[1] != error.reason:
                text = "the stream 'dead' can't be created, so 'default' stores dead letters within its limits: %s"
                log.warning(text, error.reason)
        finally:
            self._making = None
