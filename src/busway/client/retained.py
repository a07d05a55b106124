"""Retained messages of one client: posts, which the client restores after a reconnect, and pins, which the broker owns.

The Bus inherits RetainedVerbs; the lifecycle restores Posts. The client records a post when it sends it. If the
answer is lost with the connection, the client sends the post again with the same number and time, so each call has
one outcome.
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
from busway.client.durable.times import Lasting
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
"""The flag of a PUBLISH that withdraws the retained message with the same key."""

_UNLIMITED: Final = 2**40
_DRAIN: Final = 5.0
"""Seconds in which the broker must answer the UNSUBSCRIBE of kept()."""

Key: TypeAlias = tuple[str, bytes]
"""A topic, and the encoded fields sorted by name."""

_sorted: Final = msgspec.msgpack.Encoder(order="sorted")


@dataclass(slots=True, eq=False)
class _Post:
    """One post, or the withdrawal of one, as it was sent, and the future of its answer."""

    key: Key
    topic: str
    payload: bytes | str
    fields: bytes
    flags: int
    number: int
    time: int
    answer: "asyncio.Future[int]" = field(repr=False)
    awaited: bool = True
    """Whether a caller waits for the answer."""


class Posts:
    """The posts of one client by key: the last one that the broker has confirmed, and those sent after it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._by_key: dict[Key, list[_Post]] = {}

    def __len__(self) -> int:
        return sum(not posts[-1].flags & UNKEEP for posts in self._by_key.values())

    async def send(self, topic: str, payload: bytes | str, fields: bytes, flags: int) -> int:
        """Send a post or a withdrawal. Returns the value of the broker's answer."""
        core = self._core
        connection = core.usable()
        if connection.paused:
            await connection.room()
            core.usable()
        now = environment.time_ns()
        number = core.session.send(PUBLISH, topic, payload, flags=flags, fields=fields, time=now)
        key = _key(topic, fields)
        post = _Post(key, topic, payload, fields, flags, number, now, core.loop.create_future())
        self._by_key[key] = [*self._by_key.pop(key, ()), post]  # the key that was posted last stands last
        self._wait_for(post)
        try:
            return await post.answer
        finally:
            post.awaited = False

    async def restore(self) -> None:
        """Send every post again, in order. A refused post is reported, and the one it replaced is sent in its place."""
        core = self._core
        again = [posts[-1] for posts in self._by_key.values()]
        while again:
            answers = [self._send_again(post) for post in again]
            try:
                await asyncio.wait(answers)
            finally:
                for post in again:
                    core.pending.pop(post.number)
            lost = next((error for answer in answers if isinstance(error := answer.exception(), Disconnected)), None)
            if lost is not None:
                raise copy(lost)
            refused = [post for post, answer in zip(again, answers, strict=True) if answer.exception() is not None]
            again = [posts[-1] for post in refused if (posts := self._by_key.get(post.key))]

    def end(self, error: BusError) -> None:
        """Fail all posts without an answer: the client will not connect again."""
        by_key, self._by_key = self._by_key, {}
        for posts in by_key.values():
            for post in posts:
                if not post.answer.done():
                    post.answer.set_exception(copy(error))
                    post.answer.exception()  # marks it as retrieved, for no caller may wait

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
            return  # restore() sends it again, or end() fails it
        posts = self._by_key.get(post.key, [])
        if post not in posts:
            return
        if error is None:
            del posts[: posts.index(post) + bool(post.flags & UNKEEP)]  # the posts that it replaced
        else:
            posts.remove(post)
        if not posts:
            del self._by_key[post.key]
        if error is None:
            if not post.answer.done():
                post.answer.set_result(answer.result())
        elif post.awaited and not post.answer.done():
            post.answer.set_exception(error)
        else:
            log.error("the broker refused the post on %r: %s", post.topic, error)
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
        text = f"the broker did not confirm the message on {topic!r} within {within:g} s; it may still do so"
        raise Timeout(text) from None


class RetainedVerbs:
    """The verbs of a Bus for retained messages."""

    _core: Core
    _sender: Sender
    _posts: Posts

    async def post(
        self, topic: str, payload: object = b"", *, fields: Fields | None = None, timeout: Lasting | None = None
    ) -> None:
        """Publish a message that the broker retains for later subscribers while this client is connected.

        The next post with the same topic and fields replaces it. The client restores it after a reconnect. If the
        connection is lost for longer than the broker's grace time, it is withdrawn until then. `timeout` limits the
        wait for the broker's confirmation; the message stays posted if that comes later.
        """
        topic, data = outgoing(topic, payload)
        await self._post(topic, data, fields, CONFIRM | POST, timeout)

    async def unpost(self, topic: str, *, fields: Fields | None = None, timeout: Lasting | None = None) -> bool:
        """Withdraw the post with this topic and these fields. Returns whether there was one."""
        return bool(await self._post(topic, b"", fields, CONFIRM | POST | UNKEEP, timeout))

    async def pin(
        self, topic: str, payload: object = b"", *, fields: Fields | None = None, timeout: Lasting | None = None
    ) -> None:
        """Publish a message that the broker retains until unpin(), whether this client is connected or not.

        The next pin with the same topic and fields, of a client with the same name, replaces it.
        """
        topic, data = outgoing(topic, payload)
        await self._pin(topic, data, fields, CONFIRM | PIN, timeout)

    async def unpin(self, topic: str, *, fields: Fields | None = None, timeout: Lasting | None = None) -> bool:
        """Withdraw the pin with this topic and these fields of this client's name. Returns whether there was one."""
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
        """The matching posts and pins that are retained now, in the order in which they were published."""
        room = _UNLIMITED
        rules = compile_where(where)
        subscription = await Subscription(self._core, pattern, rules=rules, limit=room, limit_bytes=room, drain=_DRAIN)
        await subscription.close()
        found = [message async for batch in subscription.batches() for message in batch if message.kept]
        if subscription.missed:
            raise LimitExceeded(f"{subscription.missed} of the retained messages did not fit; narrow the pattern")
        return found
