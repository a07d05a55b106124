"""Whether a shared service would take a request: its `ask` is called, within bounds, and the broker is told.

At most so many ask at a time as there may be requests at work, since who is busy is not willing, and each for ten seconds at
most. What is under way ends with the service, and with the connection it came by.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

from busway._core import Message
from busway.client.connection.connection import Connection
from busway.client.connection.core import Core
from busway.client.connection.registration import EAGER
from busway.errors import Code, Timeout

Willing: TypeAlias = Callable[[Message], bool] | Callable[[Message], Awaitable[bool]]
"""Says whether a service would take a request."""

LIMIT: Final = 10.0
"""Seconds that one ask may take."""


class AskCallbacks:
    """What one service is being asked."""

    def __init__(self, core: Core, topic: str, ask: Willing | None, most: int) -> None:
        self.wanted = ask is not None
        self._core = core
        self._topic = topic
        self._ask = ask
        self._most = most
        self._tasks: set[asyncio.Task[None]] = set()
        self._connection: Connection | None = None
        """The one whose end is listened for."""
        self._over = False

    def __len__(self) -> int:
        return len(self._tasks)

    def asked(self, connection: Connection, call: int, message: Message) -> None:
        """The broker wants to know whether a request would be taken."""
        if self._over or len(self._tasks) >= self._most:
            self._say(connection, call, False)
            return
        try:
            said = True if self._ask is None else self._ask(message)
        except Exception as error:  # noqa: BLE001, reported
            self._core.report(error, "ask", self._topic)
            said = False
        if not inspect.isawaitable(said):
            self._say(connection, call, said)
            return
        self._listen(connection)
        task = asyncio.Task(self._wait(connection, call, said), loop=self._core.loop, **EAGER)
        if not task.done():
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, said))

    def close(self) -> "set[asyncio.Task[None]]":
        """Say no from now on; what is still under way, to be cancelled."""
        self._over = True
        if self._connection is not None:
            self._connection.ended.remove_done_callback(self._lost)
            self._connection = None
        return set(self._tasks)

    def _ended(self, asking: Awaitable[object], task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if inspect.iscoroutine(asking):
            asking.close()  # if the task was cancelled before its first step, nobody has awaited it

    async def _wait(self, connection: Connection, call: int, asking: Awaitable[object]) -> None:
        said: object = False
        limit = asyncio.timeout(LIMIT)
        try:
            async with limit:
                said = await asking
        except TimeoutError as error:
            if not limit.expired():
                self._core.report(error, "ask", self._topic)
        except Exception as error:  # noqa: BLE001, reported
            self._core.report(error, "ask", self._topic)
        finally:
            if limit.expired():  # also one that would not be cancelled and said something later
                said = False
                text = f"ask was cancelled: it did not say within {LIMIT:g} s whether {self._topic!r} is willing"
                self._core.report(Timeout(text), "ask", self._topic)
            self._say(connection, call, said)

    def _say(self, connection: Connection, call: int, willing: object) -> None:
        if connection is self._core.connection and not connection.over:
            self._core.session.accept(call, Code.OK if willing else Code.REFUSED)

    def _listen(self, connection: Connection) -> None:
        """With the connection everything that came by it is to end: nobody waits for the answers any more."""
        if connection is self._connection:
            return
        if self._connection is not None:
            self._connection.ended.remove_done_callback(self._lost)
            self._cancel()
        self._connection = connection
        connection.ended.add_done_callback(self._lost)

    def _lost(self, ended: "asyncio.Future[None]") -> None:
        if self._connection is not None and self._connection.ended is ended:
            self._connection = None
            self._cancel()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
