"""Messages that the broker keeps: posts, which this client remembers and puts back after a loss, and pins.

A post is in the books from the moment it is sent. If its answer is lost with the connection, it is sent again under its old
number and time once there is a new one, so each call has exactly one outcome. Pins outlive their sender: they are the broker's.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from busway.client.connection.core import Core
from busway.client.connection.events import Event
from busway.client.connection.sender import CONFIRM, PUBLISH, Sender
from busway.client.durable.publisher import Lasting
from busway.client.subscriptions.subscription import Subscription
from busway.client.typed.protocol import outgoing
from busway.common import environment
from busway.common.durations import seconds
from busway.errors import BusError, Disconnected, LimitExceeded, Timeout
from busway.fields import Fields, Where, compile_where
from busway.message import Message
from busway.topic import check_topic

log = logging.getLogger("busway.client")

POST: Final = 0x08
PIN: Final = 0x10
UNKEEP: Final = 0x20
"""Take the kept message with the same key back."""

_EVERYTHING: Final = 2**40
_ENDING: Final = 5.0

Key: TypeAlias = tuple[str, bytes]
"""A topic, and fields in an order of their own."""

_sorted: Final = msgspec.msgpack.Encoder(order="sorted")


@dataclass(slots=True, eq=False)
class _Post:
    """A post or the taking back of one, as it was sent, and its answer."""

    key: Key
    topic: str
    payload: bytes | str
    fields: bytes
    flags: int
    number: int
    time: int
    answer: "asyncio.Future[int]" = field(repr=False)
    awaited: bool = True
    """Somebody waits for the answer."""


class Posts:
    """What this client has posted, by key: what the broker has last confirmed, and what was sent after it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._books: dict[Key, list[_Post]] = {}

    def __len__(self) -> int:
        return sum(not posts[-1].flags & UNKEEP for posts in self._books.values())

    async def send(self, topic: str, payload: bytes | str, fields: bytes, flags: int) -> int:
        """Post or take back; the value of the broker's answer."""
        core = self._core
        connection = core.usable()
        if connection.paused:
            await connection.room()
            core.usable()
        now = environment.time_ns()
        number = core.session.send(PUBLISH, topic, payload, flags=flags, fields=fields, time=now)
        key = _key(topic, fields)
        post = _Post(key, topic, payload, fields, flags, number, now, core.loop.create_future())
        self._books[key] = [*self._books.pop(key, ()), post]  # what was posted last stands last
        self._wait_for(post)
        try:
            return await post.answer
        finally:
            post.awaited = False

    async def restore(self) -> None:
        """Put everything back, in order. What is refused now is told, and what stood before it is tried in its place."""
        core = self._core
        again = [posts[-1] for posts in self._books.values()]
        while again:
            answers = [self._send_again(post) for post in again]
            try:
                await asyncio.wait(answers)
            finally:
                for post in again:
                    core.pending.pop(post.number)
            lost = next((error for one in answers if isinstance(error := one.exception(), Disconnected)), None)
            if lost is not None:
                raise copy(lost)
            refused = [post for post, one in zip(again, answers, strict=True) if one.exception() is not None]
            again = [posts[-1] for post in refused if (posts := self._books.get(post.key))]

    def end(self, error: BusError) -> None:
        """There will be no further connection."""
        books, self._books = self._books, {}
        for posts in books.values():
            for post in posts:
                if not post.answer.done():
                    post.answer.set_exception(copy(error))
                    post.answer.exception()  # told to whoever waits; if nobody does, the books ended with the client

    def _wait_for(self, post: _Post) -> "asyncio.Future[Any]":
        answer = self._core.answer(post.number)
        answer.add_done_callback(partial(self._answered, post))
        return answer

    def _send_again(self, post: _Post) -> "asyncio.Future[Any]":
        try:
            self._core.session.send(
                PUBLISH,
                post.topic,
                post.payload,
                flags=post.flags,
                fields=post.fields,
                number=post.number,
                time=post.time,
            )
        except BusError as error:  # another server may have other limits
            answer: asyncio.Future[Any] = self._core.loop.create_future()
            answer.set_exception(error)
            answer.add_done_callback(partial(self._answered, post))
            return answer
        return self._wait_for(post)

    def _answered(self, post: _Post, answer: "asyncio.Future[int]") -> None:
        if answer.cancelled() or isinstance(error := answer.exception(), Disconnected):
            return  # restore() sends it again, or end() has the last word
        posts = self._books.get(post.key, [])
        if post not in posts:
            return
        if error is None:
            del posts[: posts.index(post) + bool(post.flags & UNKEEP)]  # what it took the place of
        else:
            posts.remove(post)
        if not posts:
            del self._books[post.key]
        if error is None:
            if not post.answer.done():
                post.answer.set_result(answer.result())
        elif post.awaited and not post.answer.done():
            post.answer.set_exception(error)
        else:
            log.error("the post on %r was refused: %s", post.topic, error)
            self._core.events.emit(Event(kind="rejected", topic=post.topic, error=error))


def _key(topic: str, fields: bytes) -> Key:
    return check_topic(topic), _sorted.encode(msgspec.msgpack.decode(fields)) if fields else b""


@asynccontextmanager
async def _confirmed(topic: str, timeout: Lasting | None) -> AsyncIterator[None]:
    """Limit the wait for the broker's confirmation."""
    within = None if timeout is None else seconds("timeout", timeout)
    try:
        async with asyncio.timeout(within):
            yield
    except TimeoutError:
        text = (
            f"the broker did not confirm the message on {topic!r} within {within:g} s; it may still do what was asked"
        )
        raise Timeout(text) from None


class RetainedVerbs:
    """The verbs of a bus for messages that are kept."""

    _core: Core
    _sender: Sender
    _posts: Posts

    async def post(
        self, topic: str, payload: object = b"", *, fields: Fields | None = None, timeout: Lasting | None = None
    ) -> None:
        """Publish a message and have it kept as long as this client is there, for all who subscribe later.

        The next one with the same topic and fields takes its place. After a lost connection it is put back; a loss that
        lasts longer than the broker's grace withdraws it until then. `timeout` limits the wait for the broker's confirmation; the message
        stays posted if that comes later.
        """
        topic, data = outgoing(topic, payload)
        await self._post(topic, data, fields, CONFIRM | POST, timeout)

    async def unpost(self, topic: str, *, fields: Fields | None = None, timeout: Lasting | None = None) -> bool:
        """Take back what was posted with this topic and these fields; whether there was something."""
        return bool(await self._post(topic, b"", fields, CONFIRM | POST | UNKEEP, timeout))

    async def pin(
        self, topic: str, payload: object = b"", *, fields: Fields | None = None, timeout: Lasting | None = None
    ) -> None:
        """Publish a message and have it kept until it is taken back, whether this client is there or not.

        The next one with the same topic and fields of a client with the same name takes its place.
        """
        topic, data = outgoing(topic, payload)
        await self._pin(topic, data, fields, CONFIRM | PIN, timeout)

    async def unpin(self, topic: str, *, fields: Fields | None = None, timeout: Lasting | None = None) -> bool:
        """Take back what was pinned under this client's name with this topic and these fields; whether there was something."""
        return bool(await self._pin(topic, b"", fields, CONFIRM | PIN | UNKEEP, timeout))

    async def _post(
        self, topic: str, data: bytes | str, fields: Fields | None, flags: int, timeout: Lasting | None
    ) -> int:
        packed = self._core.pack(fields)
        async with _confirmed(topic, timeout):
            return await self._posts.send(topic, data, packed, flags)

    async def _pin(
        self, topic: str, data: bytes | str, fields: Fields | None, flags: int, timeout: Lasting | None
    ) -> int:
        packed = self._core.pack(fields)
        async with _confirmed(topic, timeout):
            found: int = await self._sender.ask(PUBLISH, topic, data, None, flags=flags, fields=packed)
            return found

    async def kept(self, pattern: str = "**", *, where: Where | None = None) -> list[Message]:
        """The posts and pins that match and are kept now, in the order they came."""
        room = _EVERYTHING
        rules = compile_where(where)
        subscription = await Subscription(self._core, pattern, rules=rules, limit=room, limit_bytes=room, drain=_ENDING)
        await subscription.close()
        found = [message async for batch in subscription.batches() for message in batch if message.kept]
        if subscription.missed:
            raise LimitExceeded(f"{subscription.missed} of the kept messages did not fit; ask for fewer")
        return found
