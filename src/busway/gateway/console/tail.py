"""Live tails: subscriptions of a console session, of which it gets as many messages as a person can read. A driver.

A tail takes at most ROWS messages every EVERY seconds. Its inbox is small, so the engine drops all others before they
are copied, and counts them. A tail of a million messages a second costs the broker little more than one of a hundred.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from busway.client.bus import Bus
from busway.client.subscriptions.subscription import Subscription
from busway.errors import BusError
from busway.fields import Where
from busway.gateway.console.messages import message_object
from busway.gateway.json.statuses import BAD, Refused, status_of
from busway.settings import MiB

EVERY: Final = 0.25
"""Seconds between two pushes of rows."""
ROWS: Final = 50
"""Messages of one push."""
_LIMIT: Final = 64
_BYTES: Final = 16 * MiB
_MOST: Final = 8
"""Tails of one session."""

Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class Tails:
    """The tails of one session, by their numbers."""

    def __init__(self, bus: Bus, send: Send) -> None:
        self._bus = bus
        self._send = send
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._number = 0

    async def begin(self, pattern: str, where: Where | None) -> int:
        """Begin a tail and return its number. Raises BusError and Refused."""
        if len(self._tasks) >= _MOST:
            raise Refused(BAD, f"a console may have {_MOST} tails: stop one first")
        subscription = self._bus.subscribe(pattern, where=where, policy="drop_new", limit=_LIMIT, limit_bytes=_BYTES)
        await subscription.__aenter__()
        self._number += 1
        number = self._number
        task = asyncio.get_running_loop().create_task(self._pump(number, subscription), name="busway console tail")
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))
        return number

    async def end(self, number: int) -> None:
        """End a tail; nothing happens if there is none with this number."""
        if (task := self._tasks.pop(number, None)) is not None:
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        """End all tails."""
        for number in list(self._tasks):
            await self.end(number)

    async def _pump(self, number: int, subscription: Subscription) -> None:
        try:
            while True:
                batch = await subscription.take(ROWS)
                rows = [message_object(message) for message in batch]
                del batch
                await self._send({"tail": number, "rows": rows, "missed": subscription.missed})
                await asyncio.sleep(EVERY)
        except BusError as error:
            _, text = status_of(error)
            await self._send({"tail": number, "ended": text})
        finally:
            with suppress(BusError):
                await subscription.__aexit__(None, None, None)
