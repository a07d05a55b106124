"""The folders `topics` and `json`: a file for each topic, which grows by what is published and publishes what is written. A driver."""

import asyncio
import logging
import os
from collections import deque
from errno import EAGAIN, EINVAL, EIO, ENODATA, ENOSPC, EPERM
from functools import partial
from typing import Any, Final

import msgspec

from busway.errors import BusError
from busway.fields import encode_fields
from busway.gateway.files.kernel.device import Kernel
from busway.gateway.files.kernel.protocol import DIRECT_IO, STREAM
from busway.gateway.files.nodes import File, Later, Node
from busway.gateway.files.topics import subscriptions
from busway.gateway.files.topics.lines import Reader, Written
from busway.gateway.files.topics.subscriptions import Form, TopicSubscriptions, Trail, told
from busway.gateway.files.topics.tree import Paths, Tree
from busway.gateway.message_json import of_object

log = logging.getLogger("busway.gateway")

_FIELD: Final = "busway.field."
_TURNS: Final = 3
"""Turns of the loop in which what has arrived gets to its lines."""


class Topics:
    """All files of topics in one form."""

    def __init__(self, kernel: Kernel, source: TopicSubscriptions, paths: Paths, form: Form) -> None:
        self.kernel = kernel
        self.following = source
        self.form = form
        self.paths = paths
        tree = Tree(paths, partial(TopicNode, self))
        tree.removed = self._removed
        self.folder = tree.folder()

    def _removed(self, topic: str) -> None:
        self.following.fields.pop(topic, None)
        self.following.leave(topic)


class TopicNode(Node):
    """The file of one topic."""

    def __init__(self, topics: Topics, topic: str) -> None:
        self._topics = topics
        self._topic = topic

    @property
    def _trail(self) -> Trail | None:
        return self._topics.following.known(self._topic, self._topics.form)

    @property
    def size(self) -> int:
        trail = self._trail
        return trail.lines.size if trail is not None else 0

    @property
    def changed(self) -> int:
        trail = self._trail
        return trail.last.time_ns if trail is not None and trail.last is not None else 0

    def open(self, flags: int) -> Any:
        trail = self._trail
        return self._opened(trail, flags) if trail is not None else self._follow(flags)

    def touch(self) -> Later | None:
        return None if self._trail is not None else self._touch()

    async def _touch(self) -> None:
        await self._topics.following.follow(self._topic, self._topics.form)
        self._topics.paths.add(self._topic)

    async def _follow(self, flags: int) -> File:
        await self._touch()
        trail = self._trail
        assert trail is not None
        return self._opened(trail, flags)

    def _opened(self, trail: Trail, flags: int) -> File:
        kind = Conversation if flags & os.O_ACCMODE == os.O_RDWR else TopicFile
        return kind(self._topics, trail)

    def attributes(self) -> dict[str, bytes]:
        trail = self._trail
        made = {"busway.topic": self._topic.encode()}
        if trail is not None:
            missed = trail.missed + (trail.subscription.missed if trail.subscription is not None else 0)
            figures = {"lines": trail.lines.count, "missed": missed, "refused": trail.refused}
            made |= {f"busway.{name}": str(figure).encode() for name, figure in figures.items()}
            if (last := trail.last) is not None:
                made |= {"busway.last.sender": last.sender.encode(), "busway.last.time": last.time.isoformat().encode()}
                made |= {f"busway.last.field.{name}": shown(value) for name, value in last.fields.items()}
        fields = self._topics.following.fields.get(self._topic, {})
        return made | {_FIELD + name: shown(value) for name, value in fields.items()}

    def set_attribute(self, name: str, value: bytes | None) -> None:
        if not name.startswith(_FIELD):
            raise OSError(EPERM, "only fields can be set: user.busway.field.NAME")
        name = name.removeprefix(_FIELD)
        fields = dict(self._topics.following.fields.get(self._topic, {}))
        if value is None:
            if name not in fields:
                raise OSError(ENODATA, name)
            del fields[name]
        else:
            fields[name] = _value(value)
        try:
            encode_fields(fields)
        except BusError as error:
            raise OSError(EINVAL, str(error)) from None
        if (
            self._topic not in self._topics.following.fields
            and len(self._topics.following.fields) >= self._topics.following.settings.followed
        ):
            raise OSError(ENOSPC, "too many topics have fields")
        if fields:
            self._topics.following.fields[self._topic] = fields
        else:
            self._topics.following.fields.pop(self._topic, None)


class TopicFile(File):
    """An open one, as a file that others write to: it ends where nothing more has come yet."""

    def __init__(self, topics: Topics, trail: Trail) -> None:
        super().__init__(topics.kernel)
        self._topics = topics
        self._trail = trail
        self._written = Written(topics.following.settings.line)
        self._skipped = 0
        """Bytes that were gone when they were to be read."""
        self._wrote = False
        trail.enter(self.arrived)
        self._reader = Reader(trail.lines, trail.lines.origin)

    # Reading.

    def read(self, number: int, offset: int, size: int, flags: int) -> None:
        del flags
        place = self._trail.lines.origin + self._skipped + offset
        begins, data = self._got(place, size)
        self._skipped += begins - place
        self.kernel.data(number, data)

    def _got(self, place: int, size: int) -> tuple[int, bytes]:
        """What there is from a place on, and where that begins. What was gone before is counted."""
        missed = self._reader.missed
        found = self._reader.read(place, size)
        if self._reader.missed > missed:
            self._trail.missed += self._reader.missed - missed
            if not missed:
                log.warning(
                    "a reader of the file of %s is too slow and misses lines; its attribute user.busway.missed counts them",
                    self._trail.topic,
                )
        return found

    def ready(self) -> bool:
        return self._reader.place < self._trail.lines.end

    def arrived(self) -> None:
        """There is a new line."""
        self.wake()

    # Writing.

    def write(self, number: int, offset: int, data: memoryview, flags: int) -> Later:
        del offset, flags
        begun, lines = self._written.begun, list[bytes]()
        try:
            lines = self._written.add(bytes(data))
            messages = [self._message(line) for line in lines]
        except OSError as error:
            if lines:
                self._written.refuse(len(lines), error.errno or EINVAL)
            self._count()
            raise
        return self._publish(number, messages, len(data), begun)

    async def _publish(
        self, number: int, messages: list[tuple[bytes, dict[str, Any] | None]], size: int, begun: bytes
    ) -> None:
        sent = 0
        try:
            for payload, fields in messages:
                self._wrote = True
                await self._send(payload, fields)
                sent += 1
        except OSError as error:
            self._written.refuse(len(messages) - sent, error.errno or EIO)
            self._count()
            raise
        except asyncio.CancelledError:
            self._written.begun = begun  # who was interrupted writes the same again
            raise
        self.kernel.wrote(number, size)

    def _count(self) -> None:
        """Some lines were refused."""
        self._trail.refused += self._written.thrown
        self._written.thrown = 0

    def _message(self, line: bytes) -> tuple[bytes, dict[str, Any] | None]:
        fields = self._topics.following.fields.get(self._trail.topic)
        if self._topics.form is not subscriptions.json:
            return line, fields
        try:
            payload, given = of_object(line)
        except ValueError as error:
            raise OSError(EINVAL, str(error)) from None
        return payload, {**(fields or {}), **given} or None

    async def _send(self, payload: bytes, fields: dict[str, Any] | None) -> None:
        try:
            await self._topics.following.bus.publish(self._trail.topic, payload, fields=fields)
        except BusError as error:
            raise told(error) from error

    def flush(self, number: int) -> Later | None:
        last = self._written.last()
        if not last and not self._wrote:
            self.kernel.data(number)
            return None
        return self._finish(number, last)

    async def _finish(self, number: int, last: bytes) -> None:
        """What was written is at the broker when close() returns, and in the file itself."""
        if last:
            try:
                await self._send(*self._message(last))
            except OSError:
                self._trail.refused += 1
                raise
        self._wrote = False
        try:
            await self._topics.following.bus.flush()
        except BusError as error:
            raise told(error) from error
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self.kernel.data(number)

    def close(self) -> None:
        self._trail.users.discard(self.arrived)


class Conversation(TopicFile):
    """One that is open for reading and writing: it begins with what comes next, and a read waits for that."""

    flags = DIRECT_IO | STREAM

    def __init__(self, topics: Topics, trail: Trail) -> None:
        super().__init__(topics, trail)
        self._reader = Reader(trail.lines, trail.lines.end)
        self._reads: deque[tuple[int, int]] = deque()

    def read(self, number: int, offset: int, size: int, flags: int) -> None:
        if self.ready():
            self._give(number, size)
        elif offset:
            self.kernel.data(number)
        elif flags & os.O_NONBLOCK:
            raise OSError(EAGAIN, "nothing has come")
        else:
            self._reads.append((number, size))
            self.kernel.wait(number, self._interrupted)

    def _give(self, number: int, size: int) -> None:
        self.kernel.data(number, self._got(self._reader.place, size)[1])

    def _interrupted(self, number: int) -> None:
        self._reads = deque(one for one in self._reads if one[0] != number)

    def arrived(self) -> None:
        while self._reads and self.ready():
            self._give(*self._reads.popleft())
        self.wake()


def shown(value: Any) -> bytes:
    """A field as the value of an attribute: a text and bytes as they are, anything else as JSON."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str)


def _value(data: bytes) -> Any:
    """A field of the value of an attribute: what is JSON is read as such."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
