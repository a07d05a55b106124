"""Topics that are followed for the sake of files: a subscription each, and the lines that came of it. A driver.

A topic is followed from the moment on in which its file is first opened. It goes on when the file is closed, so that the next one who
opens it finds what came in between; when there are too many, the one goes that was not used for longest.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from errno import EHOSTUNREACH, EINVAL, EIO, ENFILE, ENOSPC, ETIMEDOUT
from functools import partial
from typing import Any, TypeAlias

import msgspec

from busway.client.bus import Bus
from busway.client.subscriptions.subscription import Subscription
from busway.errors import BusError, LimitExceeded, NoResponders, Rejected, Timeout
from busway.gateway.files.config import Mount
from busway.gateway.files.topics.lines import Lines
from busway.gateway.message_json import as_object
from busway.message import Message

Form: TypeAlias = Callable[[Message], bytes]
"""What a message is as a line."""


def text(message: Message) -> bytes:
    """The payload, with one newline at its end."""
    return message.payload.removesuffix(b"\n") + b"\n"


def json(message: Message) -> bytes:
    """An object."""
    return msgspec.json.encode(as_object(message), enc_hook=str) + b"\n"


class Trail:
    """One topic in one form."""

    def __init__(self, topic: str, form: Form, limit: int) -> None:
        self.topic = topic
        self._form = form
        self.lines = Lines(limit)
        self.last: Message | None = None
        self.subscription: Subscription | None = None
        self.missed = 0
        """Lines that were gone before somebody who had the file open has read them."""
        self.refused = 0
        """Lines that were written and could not be published."""
        self.users: set[Callable[[], None]] = set()
        """Called when there is a new line; one for each open file."""

    def came(self, message: Message) -> None:
        if message.kind in {"publish", "post", "pin"}:
            self.last = message
            self.lines.add(self._form(message))
            for user in list(self.users):
                user()

    def enter(self, user: Callable[[], None]) -> None:
        """A file of it is open."""
        if not self.users:
            self.lines.rewind()
        self.users.add(user)


class TopicSubscriptions:
    """The topics that one mount follows."""

    def __init__(self, bus: Bus, settings: Mount) -> None:
        self.bus = bus
        self.settings = settings
        self.fields: dict[str, dict[str, Any]] = {}
        """By topic: the fields of what is published through its files."""
        self._trails: OrderedDict[tuple[str, Form], Trail] = OrderedDict()
        self._coming: dict[tuple[str, Form], asyncio.Task[Trail]] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._trails)

    def known(self, topic: str, form: Form) -> Trail | None:
        """What is followed already."""
        trail = self._trails.get((topic, form))
        if trail is not None:
            self._trails.move_to_end((topic, form))
        return trail

    async def follow(self, topic: str, form: Form) -> Trail:
        """Follow a topic. OSError: it can't be."""
        key = topic, form
        while (trail := self.known(topic, form)) is None:
            task = self._coming.get(key)
            if task is None:
                task = self._coming[key] = asyncio.get_running_loop().create_task(self._begin(topic, form))
                task.add_done_callback(partial(self._came, key))
            try:
                return await asyncio.shield(task)
            except BusError as error:
                raise told(error) from error
        return trail

    def _came(self, key: tuple[str, Form], task: "asyncio.Task[Trail]") -> None:
        del self._coming[key]
        if not task.cancelled():
            task.exception()  # whoever wanted it may have been interrupted

    async def _begin(self, topic: str, form: Form) -> Trail:
        self._make_room()
        trail = Trail(topic, form, self.settings.kept)
        # With its slash in front no topic is taken for a regular expression. Others' pushes and requests are not ours to take.
        # A file only shows messages: publishers never wait for it.
        trail.subscription = self.bus.subscribe("/" + topic, listen=True, policy="drop_oldest", handler=trail.came)
        await trail.subscription.start()
        self._trails[topic, form] = trail
        return trail

    def leave(self, topic: str) -> None:
        """Follow a topic no longer, unless its file is open."""
        for key in [key for key, trail in self._trails.items() if key[0] == topic and not trail.users]:
            self._end(key)

    def _make_room(self) -> None:
        while len(self._trails) >= self.settings.followed:
            key = next((key for key, trail in self._trails.items() if not trail.users), None)
            if key is None:
                raise OSError(ENFILE, f"{self.settings.followed} topics are followed, and all of them are open")
            self._end(key)

    def _end(self, key: tuple[str, Form]) -> None:
        gone = self._trails.pop(key).subscription
        if gone is not None:
            task = asyncio.get_running_loop().create_task(gone.close())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)


def told(error: BusError) -> OSError:
    """What an error of the bus is to those who have a file."""
    match error:
        case Timeout():
            code = ETIMEDOUT
        case NoResponders():
            code = EHOSTUNREACH
        case LimitExceeded():
            code = ENOSPC
        case Rejected():
            code = EINVAL
        case _:
            code = EIO
    return OSError(code, str(error))
