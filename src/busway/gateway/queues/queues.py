"""Queues of the JSON door: finds, creates, changes and removes them. A driver over the client.

A queue is a stream of the bus that takes the topic with the queue's name. The note of the stream stores the masks of
the queue and its channels, and the filters as the clients wrote them. `http/commands.py` calls this module.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from busway.client.bus import Bus
from busway.client.channels.positions import Start
from busway.errors import BusError, Code
from busway.gateway.json.config import Http
from busway.gateway.json.envelope import encoded
from busway.gateway.json.statuses import BAD, FAILED, FORBIDDEN, NOT_FOUND, Refused
from busway.gateway.queues import filters
from busway.gateway.queues.names import (
    DELETE_ON_EXIT,
    EXCLUSIVE,
    MASKS,
    PAUSE,
    channel_name,
    channel_shown,
    stream_name,
)
from busway.streams import DEFAULT, ChannelInfo, StreamConfig
from busway.topic import check_topic, is_reserved

if TYPE_CHECKING:
    from busway.broker.server import Server

_REMEMBERED: Final = 100_000
_TYPES: Final = ("memory", "disk", "db")


class Setting(msgspec.Struct, omit_defaults=True):
    """Mask and filter that a client has set for a queue or a channel."""

    mask: int = 0
    filter: str = ""


class Note(msgspec.Struct, omit_defaults=True):
    """Content of the note of a queue's stream."""

    mq: Setting = msgspec.field(default_factory=Setting)
    untyped: bool = False
    """The queue was created without `mqType`. Clients expect that its new channels begin with the next message."""
    channels: dict[str, Setting] = msgspec.field(default_factory=dict)
    base: int = 0
    """First offset of the stream. It is above 0 if a stream of this name was removed, whose offsets are not reused."""


class Queue:
    """An existing queue."""

    __slots__ = ("acked", "alone", "name", "note", "stream", "topic", "topics", "type")

    def __init__(self, topic: str, config: StreamConfig, *, taken: bool) -> None:
        self.name = topic
        self.topic = topic if taken else None
        """The topic to publish on. None: the stream has the name of the queue, but takes other topics."""
        self.stream = config.name
        self.topics = config.topics
        """All topics that the stream takes."""
        self.type = config.store
        self.alone = topic == config.name or config.topics == (topic,)
        """Whether the queue is the whole stream. False: the stream has further topics."""
        try:
            self.note = msgspec.json.decode(config.note or "{}", type=Note)
        except (msgspec.MsgspecError, RecursionError):  # another program wrote the note
            self.note = Note()
        text = encoded(f"OK, PUB (mq={topic})")
        self.acked = b',"status":200,"body":' + text + b"}", b'},"status":200,"body":' + text + b"}"
        """The end of the answer to a `pub`, for each form."""

    @property
    def mask(self) -> int:
        """The mask of the queue."""
        return self.note.mq.mask

    @property
    def base(self) -> int:
        """The stream offset of message 0 of the queue."""
        return self.note.base

    @property
    def starts_new(self) -> bool:
        """Whether a new channel begins with the next message rather than with the first."""
        return self.type == "memory" or self.note.untyped

    def channel_mask(self, name: str) -> int:
        """The mask of a channel."""
        setting = self.note.channels.get(name)
        return setting.mask if setting is not None else 0


class Queues:
    """All queues of the door, looked up in the streams of the broker."""

    def __init__(self, server: "Server", bus: Bus, settings: Http) -> None:
        self._server = server
        self._bus = bus
        self._settings = settings
        self._known: dict[str, Queue] = {}
        self._changes = server.stream_changes
        self._seen = -1
        self._changing = asyncio.Lock()

    def find(self, mq: str) -> Queue | None:
        """The queue with the name `mq`; None if it does not exist. Raises InvalidTopic."""
        if self._changes.count == self._seen:
            if (queue := self._known.get(mq)) is not None:
                return queue
        else:
            self._known.clear()
            self._seen = self._changes.count
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        topic = check_topic(mq, wildcards=False)
        config = self._server.stream_of(topic)
        if config is not None:
            queue = Queue(topic, config, taken=True)
        elif topic != DEFAULT and (config := self._server.streams().get(topic)) is not None:
            queue = Queue(topic, config, taken=False)
        else:
            return None
        self._known[mq] = queue
        return queue

    def get(self, mq: str) -> Queue:
        """The queue with the name `mq`. Raises Refused if it does not exist."""
        if (queue := self.find(mq)) is None:
            raise Refused(NOT_FOUND, f"MQ({mq}) Not Found")
        return queue

    async def create(self, mq: str, type_: str | None, mask: int | None) -> Queue:
        """Create a queue, or change the mask of an existing one."""
        if type_ is not None and type_ not in _TYPES:
            raise Refused(FAILED, f"mqType({type_}) Not Support")
        _check_mask("mqMask", mask)
        async with self._changing:
            queue = self.find(mq)
            if queue is None:
                topic = check_topic(mq, wildcards=False)
                if is_reserved(topic):
                    raise Refused(FORBIDDEN, f"{topic} belongs to the broker")
                await self._create_stream(topic, type_, mask or 0)
                return self.get(mq)
            if type_ is not None and type_ != queue.type:
                raise Refused(BAD, f"MQ({mq}) has the type {queue.type}; the type of a queue can't change")
            if mask is not None and mask != queue.mask:
                queue.note.mq.mask = mask
                await self._write_note(queue)
                paused = bool(mask & PAUSE)
                for channel in await self._bus.channels(queue.stream):
                    if channel.paused != (paused or bool(queue.channel_mask(channel.name) & PAUSE)):
                        await self._bus.update_channel(queue.stream, channel.name, paused=not channel.paused)
            return self.get(mq)

    async def _create_stream(self, topic: str, type_: str | None, mask: int) -> None:
        store = type_ or self._server.storage
        memory = store == "memory"
        note = Note(mq=Setting(mask=mask), untyped=type_ is None and not memory)
        stream = await self._bus.create_stream(
            stream_name(topic),
            [topic],
            store=store,
            safety="memory" if memory else "written",
            max_age=None,
            max_count=self._settings.memory_count if memory else None,
            max_bytes=self._settings.memory_bytes if memory else None,
            note="" if note == Note() else encoded(note).decode(),
        )
        note.base = (await stream.info()).first
        if note.base:
            await self._bus.update_stream(stream_name(topic), note=encoded(note).decode())

    async def _write_note(self, queue: Queue) -> None:
        note = encoded(queue.note).decode()
        self._seen = -1  # the known queue has changed before its stream
        await self._bus.update_stream(queue.stream, note="" if note == "{}" else note)

    async def create_channel(
        self, queue: Queue, shown: str, *, mask: int | None, topic: str | None, offset: int | None, checksum: str | None
    ) -> None:
        """Create a channel of a queue, or change the given settings of an existing one, and set its position."""
        name = channel_name(shown)
        _check_mask("channelMask", mask)
        settings: dict[str, Any] = {}
        if topic is not None:
            settings["where"] = filters.rule(filters.check(topic))
        if mask is not None:
            settings |= {"exclusive": bool(mask & EXCLUSIVE), "delete_on_leave": bool(mask & DELETE_ON_EXIT)}
        if mask is not None or queue.mask & PAUSE:
            settings["paused"] = bool(((mask or 0) | queue.mask) & PAUSE)
        async with self._changing:
            position = None if offset is None else await self._position(queue, offset, checksum)
            try:
                await self._bus.channel_info(queue.stream, name)
            except BusError as error:
                if error.code != Code.NO_CHANNEL:
                    raise
                if not queue.alone:
                    settings["topic"] = queue.topic
                if position is None:
                    position = "new" if queue.starts_new else "first"
                settings |= {"lease": 0, "max_deliveries": 0, "dead_letter": ""}
                await self._bus.create_channel(queue.stream, name, start=position, **settings)
            else:
                if settings:
                    await self._bus.update_channel(queue.stream, name, **settings)
                if position is not None:
                    await self._bus.seek_channel(queue.stream, name, position)
            before = queue.note.channels.get(name, Setting())
            after = Setting(before.mask if mask is None else mask, before.filter if topic is None else topic)
            if after != before:
                queue.note.channels[name] = after
                await self._write_note(queue)

    async def _position(self, queue: Queue, offset: int, checksum: str | None) -> Start:
        if offset < 0:
            raise Refused(BAD, "offset must be 0 or more")
        stream = await self._bus.stream(queue.stream)
        info = await stream.info()
        position = offset + queue.base
        if checksum is None:
            if position > info.next:
                raise Refused(BAD, f"offset {offset} is after the end of MQ, which is {info.next - queue.base}")
            return max(position, info.first)
        async for messages in stream.read(position, position + 1):
            for message in messages:
                if checksum in {str(message.fields.get("id")), message.id}:
                    return message
        raise Refused(BAD, f"checksum unmatched: offset {offset} has no message with the id {checksum}")

    async def remove(self, mq: str) -> None:
        """Remove a queue with its messages and channels. A missing queue is no error."""
        async with self._changing:
            if (queue := self.find(mq)) is None:
                return
            if not queue.alone:
                raise Refused(BAD, f"MQ({mq}) can't be removed: its stream {queue.stream} has other topics, too")
            await self._bus.remove_stream(queue.stream)

    async def remove_channel(self, mq: str, shown: str) -> None:
        """Remove a channel. A missing channel is no error."""
        name = channel_name(shown)
        async with self._changing:
            if (queue := self.find(mq)) is None:
                return
            try:
                await self._bus.remove_channel(queue.stream, name)
            except BusError as error:
                if error.code not in {Code.NO_CHANNEL, Code.NO_STREAM}:
                    raise
            if queue.note.channels.pop(name, None) is not None:
                await self._write_note(queue)

    async def query(self, mq: str) -> dict[str, Any]:
        """Description of a queue, as the command `query` answers it."""
        queue = self.get(mq)
        info = await (await self._bus.stream(queue.stream)).info()
        channels = await self._bus.channels(queue.stream)
        return {
            "name": mq,
            "type": queue.type,
            "mask": queue.mask,
            "size": info.count if queue.type == "memory" else info.next - queue.base,
            "channels": [_channel(queue, channel) for channel in channels],
        }

    async def query_channel(self, mq: str, shown: str) -> dict[str, Any]:
        """Description of a channel, as the command `query` answers it."""
        queue = self.get(mq)
        try:
            return _channel(queue, await self._bus.channel_info(queue.stream, channel_name(shown)))
        except BusError as error:
            if error.code == Code.NO_CHANNEL:
                raise Refused(NOT_FOUND, f"Channel({shown}) Not Found") from None
            raise

    async def channel_topics(self, queue: Queue, shown: str) -> tuple[str, ...]:
        """Topics whose messages a channel delivers; empty if the channel does not exist."""
        try:
            info = await self._bus.channel_info(queue.stream, channel_name(shown))
        except BusError as error:
            if error.code == Code.NO_CHANNEL:
                return ()
            raise
        return queue.topics if info.topic in {"", "**"} else (info.topic,)

    async def consumers(self, queue: Queue) -> int:
        """Number of consumers of all channels of a queue, native ones included."""
        try:
            return sum(channel.consumers for channel in await self._bus.channels(queue.stream))
        except BusError as error:
            if error.code == Code.NO_STREAM:
                return 0
            raise


def _channel(queue: Queue, info: ChannelInfo) -> dict[str, Any]:
    setting = queue.note.channels.get(info.name)
    found: dict[str, Any] = {
        "name": channel_shown(info.name),
        "mask": setting.mask if setting is not None else 0,
        "offset": max(info.cursor - queue.base, 0),
    }
    if setting is not None and setting.filter:
        found["filter"] = setting.filter
    return found


def _check_mask(key: str, mask: int | None) -> None:
    if mask is not None and not 0 <= mask <= MASKS:
        raise Refused(BAD, f"{key} must be a whole number from 0 to {MASKS}")
