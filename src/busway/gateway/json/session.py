"""Session: the state of one client of the JSON door, over any transport: its requests, subscriptions and answers.

WebSocket and HTTP drivers derive from it and implement `answer` and `deliver`. A session runs requests in the order of
arrival. Requests that may take long (`take`, calls of services) run in the background.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from busway._core import Message
from busway.errors import BusError
from busway.gateway.json.envelope import FLAT, Ident, Request
from busway.gateway.json.statuses import AWAY, FAILED, OK, Refused, status_of

if TYPE_CHECKING:
    from busway.gateway.auth.guard import Caller
    from busway.gateway.http.commands import Commands
    from busway.gateway.queues.queues import Queue
    from busway.gateway.queues.round_robin import Subscriber

log = logging.getLogger("busway.gateway")


class Session:
    """One client of the door."""

    answers_all = False
    """Whether a `ping` without an id gets an answer, too."""

    def __init__(self, commands: "Commands") -> None:
        self.id = str(uuid4())
        self.form = FLAT
        """Form of the last request; the door uses it for messages that answer no request."""
        self.full = False
        """The client accepts no more data for now."""
        self.closed = False
        self.user: Caller | None = None
        """The user that has logged in with the connection or the request."""
        self.busy = 0
        """Unanswered requests that run in the background."""
        self.subscribers: dict[tuple[str, str], Subscriber] = {}
        """Subscribers by stream and channel."""
        self.bound: dict[str, list[str]] = {}
        """Topics of the URLs that the client has bound, by queue."""
        self._commands = commands
        self._waiting: deque[Request] = deque()
        self._running: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        commands.sessions[self.id] = self

    # Methods of the driver.

    def answer(self, form: int, ident: Ident, status: int, body: Any, head: dict[str, Any] | None = None) -> None:
        """Send the answer of the door or of a service."""
        raise NotImplementedError

    def acked(self, form: int, ident: bytes, queue: "Queue", mq: str) -> None:
        """Answer a `pub` whose message is stored. `ident` is the id in JSON."""
        del queue
        self.answer(form, msgspec.json.decode(ident), OK, f"OK, PUB (mq={mq})")

    def deliver(self, subscriber: "Subscriber", message: Message) -> None:
        """Send a message of a subscription."""
        raise NotImplementedError

    def relieved(self) -> None:
        """The session has fewer unanswered requests than before."""

    # Requests.

    @property
    def idle(self) -> bool:
        """Whether the next request can run at once."""
        return self._running is None

    @property
    def waiting(self) -> int:
        """Requests that run in the background or are queued."""
        return self.busy + len(self._waiting)

    def receive(self, request: Request) -> None:
        """Run a request, or queue it behind the running one."""
        self.form = request.form
        if request.ident is None and (request.cmd != "ping" or self.answers_all):
            request.ident = str(uuid4())
        if self._running is not None:
            self._waiting.append(request)
        else:
            self._begin(request)

    def _begin(self, request: Request) -> None:
        try:
            command = self._commands.run(self, request)
        except Exception as error:  # noqa: BLE001, the client gets it
            self.fail(request, error)
            return
        if command is not None:
            self._running = asyncio.get_running_loop().create_task(self._finish(request, command))

    async def _finish(self, request: Request, command: Coroutine[Any, Any, None]) -> None:
        try:
            await command
        except Exception as error:  # noqa: BLE001, the client gets it
            self.fail(request, error)
        self._running = None
        while self._waiting and self.idle and not self.closed:
            self._begin(self._waiting.popleft())
        self.relieved()

    def background(self, request: Request, command: Coroutine[Any, Any, None]) -> None:
        """Run a command that may take long in the background, so that the next requests need not wait."""
        self.busy += 1
        task = asyncio.get_running_loop().create_task(self._background(request, command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _background(self, request: Request, command: Coroutine[Any, Any, None]) -> None:
        try:
            await command
        except Exception as error:  # noqa: BLE001, the client gets it
            self.fail(request, error)
        except asyncio.CancelledError:
            if not self.closed:
                self.fail(request, Refused(AWAY, "the broker stops"))
            raise
        finally:
            self.busy -= 1
            self.relieved()

    def fail(self, request: Request, error: Exception) -> None:
        """Answer a request with the status and text of its error."""
        if not isinstance(error, Refused | BusError | ValueError | TypeError):
            log.error("unexpected error in the command %s", request.cmd, exc_info=error)
            self.answer(request.form, request.ident, FAILED, "unexpected error")
            return
        self.refuse(request.form, request.ident, *status_of(error))

    def refuse(self, form: int, ident: Ident, status: int, text: str) -> None:
        """Answer with the status and text of a refusal, and count it."""
        self._commands.counters.refused(status)
        self.answer(form, ident, status, text)

    # Subscriptions.

    def ended(self, subscriber: "Subscriber", status: int, text: str) -> None:
        """A subscription has ended because its queue or its channel was removed, or the broker stops."""
        self.subscribers = {key: other for key, other in self.subscribers.items() if other is not subscriber}
        mq, channel = subscriber.mq, subscriber.channel
        self.answer(subscriber.form, None, status, text, {"mq": mq, "channel": channel})

    def room(self) -> None:
        """The client accepts data again."""
        self.full = False
        for subscriber in self.subscribers.values():
            subscriber.consumer.dispatch()

    def stop(self) -> None:
        """The door closes: cancel background requests, which answer that the broker stops."""
        for task in self._tasks:
            task.cancel()

    def close(self) -> None:
        """The client has disconnected: cancel its requests and remove its subscriptions and services."""
        if self.closed:
            return
        self.closed = self.full = True
        self._waiting.clear()
        for task in (*self._tasks, self._running):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._commands.disconnected(self)
