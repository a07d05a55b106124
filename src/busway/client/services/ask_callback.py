"""The `ask` function of a shared service: calls it for each ASK of the broker, and sends the answer.

Service owns AskCallbacks. As many calls run at a time as the service's concurrency allows, each for at most ten
seconds; beyond that the service is not willing. Running calls end with the service and with the connection of their
ASK.
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
"""A user's function that returns whether a service is willing to take a request."""

LIMIT: Final = 10.0
"""Seconds that one call of `ask` may take."""


class AskCallbacks:
    """The calls of `ask` of one service."""

    def __init__(self, core: Core, topic: str, ask: Willing | None, most: int) -> None:
        self.wanted = ask is not None
        self._core = core
        self._topic = topic
        self._ask = ask
        self._most = most
        self._tasks: set[asyncio.Task[None]] = set()
        self._connection: Connection | None = None
        """The connection whose end cancels the calls."""
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def asked(self, connection: Connection, call: int, message: Message) -> None:
        """Answer an ASK, which may need a task."""
        if self._closed or len(self._tasks) >= self._most:
            self._answer(connection, call, False)
            return
        try:
            willing = True if self._ask is None else self._ask(message)
        except Exception as error:  # noqa: BLE001, reported
            self._core.report(error, "ask", self._topic)
            willing = False
        if not inspect.isawaitable(willing):
            self._answer(connection, call, willing)
            return
        self._watch(connection)
        task = asyncio.Task(self._wait(connection, call, willing), loop=self._core.loop, **EAGER)
        if not task.done():
            self._tasks.add(task)
            task.add_done_callback(partial(self._finished, willing))

    def close(self) -> "set[asyncio.Task[None]]":
        """Refuse every ASK from now on. Returns the running calls, which the caller cancels."""
        self._closed = True
        if self._connection is not None:
            self._connection.ended.remove_done_callback(self._lost)
            self._connection = None
        return set(self._tasks)

    def _finished(self, asking: Awaitable[object], task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if inspect.iscoroutine(asking):
            asking.close()  # a task that was cancelled before its first step has not awaited it

    async def _wait(self, connection: Connection, call: int, asking: Awaitable[object]) -> None:
        willing: object = False
        limit = asyncio.timeout(LIMIT)
        try:
            async with limit:
                willing = await asking
        except TimeoutError as error:
            if not limit.expired():
                self._core.report(error, "ask", self._topic)
        except Exception as error:  # noqa: BLE001, reported
            self._core.report(error, "ask", self._topic)
        finally:
            if limit.expired():  # also if it ignored the cancellation and returned later
                willing = False
                text = f"ask was cancelled: the function of {self._topic!r} did not return within {LIMIT:g} s"
                self._core.report(Timeout(text), "ask", self._topic)
            self._answer(connection, call, willing)

    def _answer(self, connection: Connection, call: int, willing: object) -> None:
        if connection is self._core.connection and not connection.over:
            self._core.session.accept(call, Code.OK if willing else Code.REFUSED)

    def _watch(self, connection: Connection) -> None:
        """Cancel the calls when this connection ends, for the broker does not wait for their answers any more."""
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
