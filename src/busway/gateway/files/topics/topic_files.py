"""The folders `topics` and `json`: a file per topic, which shows published messages and publishes written lines.

`door.py` builds both folders. A driver.
"""

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
from busway.gateway.files.nodes import Continuation, File, Node
from busway.gateway.files.topics import subscriptions
from busway.gateway.files.topics.lines import LineParser, Reader
from busway.gateway.files.topics.subscriptions import FollowedTopic, Form, TopicSubscriptions, os_error
from busway.gateway.files.topics.tree import Paths, Tree
from busway.gateway.message_json import of_object

log = logging.getLogger("busway.gateway")

_FIELD: Final = "busway.field."
_TURNS: Final = 3
"""Turns of the loop after which received messages are in their lines."""


class Topics:
    """All topic files of one form."""

    def __init__(self, kernel: Kernel, source: TopicSubscriptions, paths: Paths, form: Form) -> None:
        self.kernel = kernel
        self.subscriptions = source
        self.form = form
        self.paths = paths
        tree = Tree(paths, partial(TopicNode, self))
        tree.removed = self._removed
        self.folder = tree.folder()

    def _removed(self, topic: str) -> None:
        self.subscriptions.fields.pop(topic, None)
        self.subscriptions.unfollow(topic)


class TopicNode(Node):
    """The file of one topic."""

    def __init__(self, topics: Topics, topic: str) -> None:
        self._topics = topics
        self._topic = topic

    @property
    def _followed(self) -> FollowedTopic | None:
        return self._topics.subscriptions.known(self._topic, self._topics.form)

    @property
    def size(self) -> int:
        followed = self._followed
        return followed.lines.size if followed is not None else 0

    @property
    def changed(self) -> int:
        followed = self._followed
        return followed.last.time_ns if followed is not None and followed.last is not None else 0

    def open(self, flags: int) -> Any:
        followed = self._followed
        return self._opened(followed, flags) if followed is not None else self._follow(flags)

    def touch(self) -> Continuation | None:
        return None if self._followed is not None else self._touch()

    async def _touch(self) -> None:
        await self._topics.subscriptions.follow(self._topic, self._topics.form)
        self._topics.paths.add(self._topic)

    async def _follow(self, flags: int) -> File:
        await self._touch()
        followed = self._followed
        assert followed is not None
        return self._opened(followed, flags)

    def _opened(self, followed: FollowedTopic, flags: int) -> File:
        kind = ReadWriteTopicFile if flags & os.O_ACCMODE == os.O_RDWR else TopicFile
        return kind(self._topics, followed)

    def attributes(self) -> dict[str, bytes]:
        followed = self._followed
        attributes = {"busway.topic": self._topic.encode()}
        if followed is not None:
            missed = followed.missed + (followed.subscription.missed if followed.subscription is not None else 0)
            figures = {"lines": followed.lines.count, "missed": missed, "refused": followed.refused}
            attributes |= {f"busway.{name}": str(figure).encode() for name, figure in figures.items()}
            if (last := followed.last) is not None:
                attributes |= {
                    "busway.last.sender": last.sender.encode(),
                    "busway.last.time": last.time.isoformat().encode(),
                }
                attributes |= {f"busway.last.field.{name}": shown(value) for name, value in last.fields.items()}
        fields = self._topics.subscriptions.fields.get(self._topic, {})
        return attributes | {_FIELD + name: shown(value) for name, value in fields.items()}

    def set_attribute(self, name: str, value: bytes | None) -> None:
        if not name.startswith(_FIELD):
            raise OSError(EPERM, "only the attributes user.busway.field.NAME can be set")
        name = name.removeprefix(_FIELD)
        fields = dict(self._topics.subscriptions.fields.get(self._topic, {}))
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
            self._topic not in self._topics.subscriptions.fields
            and len(self._topics.subscriptions.fields) >= self._topics.subscriptions.settings.followed
        ):
            limit = self._topics.subscriptions.settings.followed
            raise OSError(ENOSPC, f"too many topics have fields: the limit is {limit}")
        if fields:
            self._topics.subscriptions.fields[self._topic] = fields
        else:
            self._topics.subscriptions.fields.pop(self._topic, None)


class TopicFile(File):
    """A topic file opened for reading or for writing; its end is the end of the received lines."""

    def __init__(self, topics: Topics, followed: FollowedTopic) -> None:
        super().__init__(topics.kernel)
        self._topics = topics
        self._followed = followed
        self._parser = LineParser(topics.subscriptions.settings.line)
        self._skipped = 0
        """Bytes that the buffer had dropped before this file read them."""
        self._wrote = False
        followed.add_user(self.arrived)
        self._reader = Reader(followed.lines, followed.lines.origin)

    # Reading.

    def read(self, number: int, offset: int, size: int, flags: int) -> None:
        del flags
        position = self._followed.lines.origin + self._skipped + offset
        start, data = self._read_lines(position, size)
        self._skipped += start - position
        self.kernel.data(number, data)

    def _read_lines(self, position: int, size: int) -> tuple[int, bytes]:
        """The lines from a position on with the position of their first byte; counts missed lines."""
        missed = self._reader.missed
        found = self._reader.read(position, size)
        if self._reader.missed > missed:
            self._followed.missed += self._reader.missed - missed
            if not missed:
                log.warning(
                    "a reader of the file of %s is too slow and misses lines: see its attribute user.busway.missed",
                    self._followed.topic,
                )
        return found

    def ready(self) -> bool:
        return self._reader.position < self._followed.lines.end

    def arrived(self) -> None:
        """A new line is in the buffer."""
        self.wake()

    # Writing.

    def write(self, number: int, offset: int, data: memoryview, flags: int) -> Continuation:
        del offset, flags
        unfinished, lines = self._parser.unfinished, list[bytes]()
        try:
            lines = self._parser.add(bytes(data))
            messages = [self._message(line) for line in lines]
        except OSError as error:
            if lines:
                self._parser.refuse(len(lines), error.errno or EINVAL)
            self._count()
            raise
        return self._publish(number, messages, len(data), unfinished)

    async def _publish(
        self, number: int, messages: list[tuple[bytes, dict[str, Any] | None]], size: int, unfinished: bytes
    ) -> None:
        sent = 0
        try:
            for payload, fields in messages:
                self._wrote = True
                await self._send(payload, fields)
                sent += 1
        except OSError as error:
            self._parser.refuse(len(messages) - sent, error.errno or EIO)
            self._count()
            raise
        except asyncio.CancelledError:
            self._parser.unfinished = unfinished  # an interrupted program writes the same data again
            raise
        self.kernel.wrote(number, size)

    def _count(self) -> None:
        """Add the refused lines to the count of the topic."""
        self._followed.refused += self._parser.refused
        self._parser.refused = 0

    def _message(self, line: bytes) -> tuple[bytes, dict[str, Any] | None]:
        fields = self._topics.subscriptions.fields.get(self._followed.topic)
        if self._topics.form is not subscriptions.json:
            return line, fields
        try:
            payload, own_fields = of_object(line)
        except ValueError as error:
            raise OSError(EINVAL, str(error)) from None
        return payload, {**(fields or {}), **own_fields} or None

    async def _send(self, payload: bytes, fields: dict[str, Any] | None) -> None:
        try:
            await self._topics.subscriptions.bus.publish(self._followed.topic, payload, fields=fields)
        except BusError as error:
            raise os_error(error) from error

    def flush(self, number: int) -> Continuation | None:
        line = self._parser.finish()
        if not line and not self._wrote:
            self.kernel.data(number)
            return None
        return self._finish(number, line)

    async def _finish(self, number: int, line: bytes) -> None:
        """Publish the last line, and wait until the broker and the file itself have all written lines."""
        if line:
            try:
                await self._send(*self._message(line))
            except OSError:
                self._followed.refused += 1
                raise
        self._wrote = False
        try:
            await self._topics.subscriptions.bus.flush()
        except BusError as error:
            raise os_error(error) from error
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self.kernel.data(number)

    def close(self) -> None:
        self._followed.users.discard(self.arrived)


class ReadWriteTopicFile(TopicFile):
    """A topic file opened for reading and writing: it begins with the next message, and a read waits for it."""

    flags = DIRECT_IO | STREAM

    def __init__(self, topics: Topics, followed: FollowedTopic) -> None:
        super().__init__(topics, followed)
        self._reader = Reader(followed.lines, followed.lines.end)
        self._reads: deque[tuple[int, int]] = deque()

    def read(self, number: int, offset: int, size: int, flags: int) -> None:
        if self.ready():
            self._answer(number, size)
        elif offset:
            self.kernel.data(number)
        elif flags & os.O_NONBLOCK:
            raise OSError(EAGAIN, "no message has arrived")
        else:
            self._reads.append((number, size))
            self.kernel.wait(number, self._interrupted)

    def _answer(self, number: int, size: int) -> None:
        self.kernel.data(number, self._read_lines(self._reader.position, size)[1])

    def _interrupted(self, number: int) -> None:
        self._reads = deque(read for read in self._reads if read[0] != number)

    def arrived(self) -> None:
        while self._reads and self.ready():
            self._answer(*self._reads.popleft())
        self.wake()


def shown(value: Any) -> bytes:
    """A field as the value of an attribute: text and bytes unchanged, any other value as JSON."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str)


def _value(data: bytes) -> Any:
    """The field in the value of an attribute: JSON decoded, any other value as text or bytes."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
