"""Subscriptions of topic files: follows topics with one subscription each, and buffers their messages as lines.

A topic is followed from the first time that its file is opened. It stays so after the file is closed, so that the
next reader finds the messages since then. Above the limit, the topic that was unused for longest is dropped.
`topic_files.py` calls this. A driver.
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
"""Converts a message into a line."""


def text(message: Message) -> bytes:
    """The payload, with one newline at its end."""
    return message.payload.removesuffix(b"\n") + b"\n"


def json(message: Message) -> bytes:
    """A JSON object."""
    return msgspec.json.encode(as_object(message), enc_hook=str) + b"\n"


class FollowedTopic:
    """One followed topic in one form: its subscription, its lines and its open files."""

    def __init__(self, topic: str, form: Form, limit: int) -> None:
        self.topic = topic
        self._form = form
        self.lines = Lines(limit)
        self.last: Message | None = None
        self.subscription: Subscription | None = None
        self.missed = 0
        """Lines that the buffer dropped before a reader of the file had read them."""
        self.refused = 0
        """Written lines that were not published."""
        self.users: set[Callable[[], None]] = set()
        """Callbacks for a new line, one per open file."""

    def received(self, message: Message) -> None:
        """Add a message of the subscription, and call the open files."""
        if message.kind in {"publish", "post", "pin"}:
            self.last = message
            self.lines.add(self._form(message))
            for user in list(self.users):
                user()

    def add_user(self, user: Callable[[], None]) -> None:
        """Register the callback of an open file."""
        if not self.users:
            self.lines.rewind()
        self.users.add(user)


class TopicSubscriptions:
    """All topics that one mount follows."""

    def __init__(self, bus: Bus, settings: Mount) -> None:
        self.bus = bus
        self.settings = settings
        self.fields: dict[str, dict[str, Any]] = {}
        """Fields of the messages that files publish, by topic."""
        self._followed: OrderedDict[tuple[str, Form], FollowedTopic] = OrderedDict()
        self._starting: dict[tuple[str, Form], asyncio.Task[FollowedTopic]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._followed)

    def known(self, topic: str, form: Form) -> FollowedTopic | None:
        """A topic if it is followed already; it counts as used now."""
        followed = self._followed.get((topic, form))
        if followed is not None:
            self._followed.move_to_end((topic, form))
        return followed

    async def follow(self, topic: str, form: Form) -> FollowedTopic:
        """Follow a topic. Raises OSError if the bus refuses it, or too many topics are open."""
        key = topic, form
        while (followed := self.known(topic, form)) is None:
            task = self._starting.get(key)
            if task is None:
                task = self._starting[key] = asyncio.get_running_loop().create_task(self._start(topic, form))
                task.add_done_callback(partial(self._started, key))
            try:
                return await asyncio.shield(task)
            except BusError as error:
                raise os_error(error) from error
        return followed

    def _started(self, key: tuple[str, Form], task: "asyncio.Task[FollowedTopic]") -> None:
        del self._starting[key]
        if not task.cancelled():
            task.exception()  # the caller may have been interrupted

    async def _start(self, topic: str, form: Form) -> FollowedTopic:
        self._make_room()
        followed = FollowedTopic(topic, form, self.settings.kept)
        # The slash in front keeps a topic from being a regular expression. A listener gets no pushes and requests of
        # other consumers, and publishers never wait for it.
        followed.subscription = self.bus.subscribe(
            "/" + topic, listen=True, policy="drop_oldest", handler=followed.received
        )
        await followed.subscription.start()
        self._followed[topic, form] = followed
        return followed

    def unfollow(self, topic: str) -> None:
        """Stop following a topic, unless its file is open."""
        for key in [key for key, followed in self._followed.items() if key[0] == topic and not followed.users]:
            self._end(key)

    def _make_room(self) -> None:
        while len(self._followed) >= self.settings.followed:
            key = next((key for key, followed in self._followed.items() if not followed.users), None)
            if key is None:
                raise OSError(ENFILE, f"too many open topics: the limit is {self.settings.followed}")
            self._end(key)

    def _end(self, key: tuple[str, Form]) -> None:
        subscription = self._followed.pop(key).subscription
        if subscription is not None:
            task = asyncio.get_running_loop().create_task(subscription.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def os_error(error: BusError) -> OSError:
    """The error of a file operation for an error of the bus."""
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
