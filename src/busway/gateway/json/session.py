"""A client of the JSON door, whatever it is connected by: its requests one after the other, its subscriptions, its answers.

A machine that drivers are built on: they say what it means to answer and to deliver. Requests are done in the order they
came, but for those that may take long (`take`, calls of services), which run beside the others.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from busway._core import Message
from busway.errors import BusError
from busway.gateway.json.envelope import FLAT, Ident, Request
from busway.gateway.json.statuses import AWAY, FAILED, Refused, told
from busway.gateway.queues.queues import Queue
from busway.gateway.queues.round_robin import Subscriber

if TYPE_CHECKING:
    from busway.gateway.http.commands import Commands

log = logging.getLogger("busway.gateway")


class Session:
    """One client."""

    answers_all = False
    """Whether a request is answered also if it has no id to know the answer by."""

    def __init__(self, commands: "Commands") -> None:
        self.id = str(uuid4())
        self.form = FLAT
        """Of its last request: what it is told unasked has this form."""
        self.full = False
        """It takes nothing for now."""
        self.gone = False
        self.busy = 0
        """Requests that are not answered yet, besides the one that the others wait for."""
        self.subscribers: dict[tuple[str, str], Subscriber] = {}
        self.bound: dict[str, list[str]] = {}
        """URLs of the services it offers, by queue."""
        self._commands = commands
        self._waiting: deque[Request] = deque()
        self._running: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        commands.sessions[self.id] = self

    # What a driver does.

    def answer(self, form: int, ident: Ident, status: int, body: Any, head: dict[str, Any] | None = None) -> None:
        """Answer a request, or pass on the answer of a service."""
        raise NotImplementedError

    def acked(self, form: int, ident: Ident, queue: Queue, mq: str) -> None:
        """Answer a `pub` that is stored."""
        del queue
        self.answer(form, ident, 200, f"OK, PUB (mq={mq})")

    def deliver(self, one: Subscriber, message: Message) -> None:
        """Hand over a message of a subscription."""
        raise NotImplementedError

    def relieved(self) -> None:
        """Fewer requests are under way."""

    # Requests.

    @property
    def idle(self) -> bool:
        """Whether no request waits for another one."""
        return self._running is None

    @property
    def waiting(self) -> int:
        """Requests that are under way or wait for their turn."""
        return self.busy + len(self._waiting)

    def receive(self, request: Request) -> None:
        """Somebody asks for something."""
        self.form = request.form
        if request.ident is None and (request.cmd != "ping" or self.answers_all):
            request.ident = str(uuid4())
        if self._running is not None:
            self._waiting.append(request)
        else:
            self._begin(request)

    def _begin(self, request: Request) -> None:
        try:
            later = self._commands.run(self, request)
        except Exception as error:  # noqa: BLE001, told
            self.fail(request, error)
            return
        if later is not None:
            self._running = asyncio.get_running_loop().create_task(self._finish(request, later))

    async def _finish(self, request: Request, later: Coroutine[Any, Any, None]) -> None:
        try:
            await later
        except Exception as error:  # noqa: BLE001, told
            self.fail(request, error)
        self._running = None
        while self._waiting and self.idle and not self.gone:
            self._begin(self._waiting.popleft())
        self.relieved()

    def beside(self, request: Request, later: Coroutine[Any, Any, None]) -> None:
        """Do something that may take long, while others go on."""
        self.busy += 1
        task = asyncio.get_running_loop().create_task(self._beside(request, later))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _beside(self, request: Request, later: Coroutine[Any, Any, None]) -> None:
        try:
            await later
        except Exception as error:  # noqa: BLE001, told
            self.fail(request, error)
        except asyncio.CancelledError:
            if not self.gone:
                self.fail(request, Refused(AWAY, "the broker stops"))
            raise
        finally:
            self.busy -= 1
            self.relieved()

    def fail(self, request: Request, error: Exception) -> None:
        """Tell what went wrong with a request."""
        if not isinstance(error, Refused | BusError | ValueError | TypeError):
            log.error("unexpected error while a request was done: %s", request.cmd, exc_info=error)
            self.answer(request.form, request.ident, FAILED, "unexpected error")
            return
        self.refuse(request.form, request.ident, *told(error))

    def refuse(self, form: int, ident: Ident, status: int, text: str) -> None:
        """Tell that something is not done."""
        self._commands.counters.refused(status)
        self.answer(form, ident, status, text)

    # Subscriptions.

    def ended(self, one: Subscriber, status: int, text: str) -> None:
        """A subscription is over: its queue or its channel is gone."""
        self.subscribers = {key: other for key, other in self.subscribers.items() if other is not one}
        mq, channel = one.mq, one.channel
        self.answer(one.form, None, status, text, {"mq": mq, "channel": channel})

    def room(self) -> None:
        """It takes something again."""
        self.full = False
        for one in self.subscribers.values():
            one.tap.look()

    def stop(self) -> None:
        """The door is closed: what is under way is answered as far as it can be."""
        for task in self._tasks:
            task.cancel()

    def close(self) -> None:
        """The client is gone."""
        if self.gone:
            return
        self.gone = self.full = True
        self._waiting.clear()
        for task in (*self._tasks, self._running):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._commands.left(self)
