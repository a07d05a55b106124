"""Streams of a client: the Stream object, which queries and reads a stream, and the bus's verbs that manage streams."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from datetime import timedelta
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from busway import arrow as arrow_columns
from busway._core import Message, block_messages, check_pattern
from busway.client.connection.core import Core
from busway.client.connection.sender import Sender
from busway.client.streams.reader import HEAD, Place, ReadAhead, ReadRequest, ask, offset_of
from busway.common.checks import check_count, check_type
from busway.errors import Code, InvalidRule, Rejected, RemoteProtocolError, StoreFailed
from busway.fields import Compiled, Where, compile_where
from busway.streams import SETTINGS, Safety, Store, StoredTopic, StreamConfig, StreamInfo

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = arrow_columns.PLACED
"""The default columns of arrow()."""


class Stream:
    """A stream of the broker; made by `bus.create_stream()` and `bus.stream()`."""

    def __init__(self, core: Core, sender: Sender, info: StreamInfo, part: str | None = None) -> None:
        self._part = part
        """The node whose part this object reads; None: the node that this client is connected to."""
        self._core = core
        self._sender = sender
        self._info = info
        self.lost = 0
        """Number of messages that reads of this object missed, since the stream no longer has them."""

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def broker(self) -> str:
        """Guid of the broker that stores this part of the stream."""
        return self._info.broker

    async def info(self, *, parts: bool = False) -> StreamInfo:
        """Current settings and figures of this part of the stream; with `parts` also the figures of each node."""
        self._info = await _info(self._sender, self.name, self._part, parts=parts)
        return self._info

    @property
    def _is_remote(self) -> bool:
        return self._part is not None and self._part != self._core.broker

    async def topics(self, pattern: str = "**") -> list[StoredTopic]:
        """The matching topics with the figures of their stored messages, ordered by topic."""
        self._check_local("topics")
        found: list[StoredTopic] = []
        question: dict[str, Any] = {"name": self.name, "pattern": check_pattern(pattern)}
        while True:
            answer = (await ask(self._sender, "$bus/stream/topics", question)).json()
            found += [StoredTopic(*row) for row in answer["topics"]]
            if not answer["more"]:
                return found
            question["after"] = found[-1].topic

    async def find(self, topic: str, sequence: int) -> int | None:
        """Offset of the first message of a topic with this sequence or a later one; None if there is none."""
        self._check_local("find")
        check_count("sequence", sequence)
        question = {"name": self.name, "topic": topic, "sequence": sequence}
        offset: int | None = (await ask(self._sender, "$bus/stream/find", question)).json()["offset"]
        return offset

    async def locate(self, place: Place) -> int:
        """The offset of a place; for a time that of the first message stored then or later."""
        info = await self.info()
        return await offset_of(self._sender, info, "place", place, info.first, remote=self._is_remote)

    def _check_local(self, what: str) -> None:
        if self._is_remote:
            raise ValueError(
                f"{what}() works only on the node that has the stream: connect to that node, or use read() or info()"
            )

    def read(
        self,
        from_: Place | None = None,
        to: Place | None = None,
        *,
        topic: str = "**",
        where: Where | None = None,
        batch: int = 1024,
    ) -> AsyncGenerator[list[Message], None]:
        """Stored messages up to the present end of the stream, as an async iterator over lists of at most `batch`.

        ::

            async for messages in stream.read("1h", topic="orders/*"):
                print(len(messages), messages[0].position)

        `from_` is a place: an offset, a position, a time or a duration back; None: the first message. Reading ends
        before the place `to`; None: the present end. Messages that the stream no longer has are skipped, counted in
        `lost` and reported by the event `gap`. Delayed messages that are not yet due and expired messages are left out.
        """
        check_count("batch", batch)
        return self._read(from_, to, check_pattern(topic), compile_where(where), batch)

    async def _read(
        self, from_: Place | None, to: Place | None, pattern: str, rules: Compiled, batch: int
    ) -> AsyncGenerator[list[Message], None]:
        request = await self._request(from_, to, pattern, rules)
        async with aclosing(self._blocks(request)) as blocks:
            async for block in blocks:
                messages = block_messages(block, request.source, None, request.begin, request.end, request.now, HEAD)
                if rules.local:
                    messages = [message for message in messages if rules.accepts(message, self._report)]
                if 0 < len(messages) <= batch:
                    yield messages
                    continue
                for start in range(0, len(messages), batch):
                    yield messages[start : start + batch]

    def arrow(
        self,
        from_: Place | None = None,
        to: Place | None = None,
        *,
        topic: str = "**",
        where: Where | None = None,
        columns: Sequence[str] = COLUMNS,
        expired: bool = False,
    ) -> "AsyncGenerator[pa.RecordBatch, None]":
        """Like read(), but an async iterator over Arrow record batches with these columns; needs `busway[arrow]`.

        With `expired` expired messages are included, so that every read of a range gives the same result. Rules that
        are callables are not supported.
        """
        arrow_columns.arrow()
        checked = arrow_columns.check_columns(columns)
        rules = compile_where(where)
        if rules.local:
            name = rules.predicates[0][0] if rules.predicates else ""
            raise InvalidRule(
                f"the rule for {name!r} is a callable, which arrow() does not support: write it as busway.expr(...)",
                name=name,
            )
        return self._arrow(from_, to, check_pattern(topic), rules, checked, expired=expired)

    async def _arrow(
        self,
        from_: Place | None,
        to: Place | None,
        pattern: str,
        rules: Compiled,
        columns: tuple[str, ...],
        *,
        expired: bool,
    ) -> "AsyncGenerator[pa.RecordBatch, None]":
        request = await self._request(from_, to, pattern, rules, expired=expired)
        same = {"broker": self.broker, "stream": self.name}
        async with aclosing(self._blocks(request)) as blocks:
            async for block in blocks:
                record_batch = arrow_columns.record_batch(
                    block[HEAD:], columns, begin=request.begin, end=request.end, now=request.now, same=same
                )
                if record_batch.num_rows:
                    yield record_batch

    async def _request(
        self, from_: Place | None, to: Place | None, pattern: str, rules: Compiled, *, expired: bool = False
    ) -> ReadRequest:
        info = await self.info()
        remote = self._is_remote
        begin = await offset_of(self._sender, info, "from_", from_, info.first, remote=remote)
        end = await offset_of(self._sender, info, "to", to, info.next, remote=remote)
        return ReadRequest(info, begin, min(end, info.next), pattern, rules, expired, remote)

    async def _blocks(self, request: ReadRequest) -> AsyncGenerator[bytes, None]:
        blocks = ReadAhead(self._core, self._sender, request)
        try:
            async with aclosing(blocks.read()) as read:
                async for block in read:
                    yield block
        finally:
            self.lost += blocks.lost

    def _report(self, error: Exception) -> None:
        self._core.report(error, "a rule", self.name)

    def __repr__(self) -> str:
        return f"<Stream {self.name!r} {self._info.store} {self._info.first}..{self._info.next}>"


class StreamVerbs:
    """The bus's verbs that create, change, remove, list and open streams."""

    _core: Core
    _sender: Sender

    async def create_stream(
        self,
        name: str,
        topics: Iterable[str],
        *,
        store: Store | None = None,
        safety: Safety = "written",
        max_age: float | str | timedelta | None = None,
        max_bytes: int | None = None,
        max_count: int | None = None,
        once: float | str | timedelta = "15m",
        retain_until: str | None = None,
        note: str = "",
    ) -> Stream:
        """Create a stream that stores durable publishes on these topics. It may already exist with the same settings.

        - `store`: memory, disk, db (a SQLite file in the broker's data folder) or the name of a database that the
          broker's operator has configured; None: disk if the broker has a data folder, else memory.
        - `safety`: how safe a message is when its publish returns, such as in memory, written, synced or mirrored.
        - `max_age`, `max_bytes`, `max_count`: the stream removes older messages beyond these limits; None: no limit.
        - `retain_until`: the name of a channel. The stream keeps each message until this channel has acknowledged it,
          and removes nothing while there is no such channel.
        - `once`: a message that is sent again within this time is stored once.
        - `note`: a description for users of the stream.

        Each topic belongs to one stream. Messages of these topics that another stream stored before stay there.
        """
        settings = {
            "topics": topics,
            "safety": safety,
            "max_age": max_age,
            "max_bytes": max_bytes,
            "max_count": max_count,
            "once": once,
            "retain_until": retain_until,
            "note": note,
        }
        if store is not None:
            settings["store"] = store
        config = StreamConfig.make(name, **settings)
        question = {key: getattr(config, key) for key in SETTINGS} | {"name": name}
        if "store" not in settings:
            question["store"] = None
        return await self._manage("create", question)

    async def update_stream(
        self,
        name: str,
        **changes: Any,
    ) -> Stream:
        """Change these settings of a stream, by their names in create_stream(). The store can't be changed.

        Messages beyond a new limit are removed at once, in whole buckets.
        """
        for key in changes:
            if key not in SETTINGS:
                raise TypeError(f"a stream has no setting {key!r}; the settings are {', '.join(SETTINGS)}")
        before = await _info(self._sender, name)
        changed = before.changed(**changes)
        return await self._manage("update", {key: getattr(changed, key) for key in changes} | {"name": name})

    async def remove_stream(self, name: str) -> StreamInfo:
        """Remove a stream with all its messages. Returns its last settings. Publishes that wait for it fail."""
        return _read((await ask(self._sender, "$bus/stream/remove", {"name": name})).payload)

    async def streams(self, *, parts: bool = False) -> list[StreamInfo]:
        """All streams of the broker, by name; with `parts` also the figures of each node of its cluster."""
        answer = await ask(self._sender, "$bus/stream/list", {"parts": True} if parts else {})
        return sorted(_read_many(answer.payload).streams, key=lambda stream: stream.name)

    async def stream(self, name: str, *, broker: str | None = None) -> Stream:
        """Open a stream for queries and reads: the part of the broker, or that of the node with the guid `broker`."""
        check_type("broker", broker, (str, NoneType), "the guid of a node, or None")
        return Stream(self._core, self._sender, await _info(self._sender, name, broker), broker)

    async def _manage(self, what: str, question: dict[str, Any]) -> Stream:
        answer = await ask(self._sender, f"$bus/stream/{what}", question)
        return Stream(self._core, self._sender, _read(answer.payload))


class _Listed(msgspec.Struct):
    streams: list[StreamInfo]


async def _info(sender: Sender, name: str, broker: str | None = None, *, parts: bool = False) -> StreamInfo:
    check_type("name", name, str, "a str")
    question = {"name": name} | ({"parts": True} if parts or broker is not None else {})
    info = _read_many((await ask(sender, "$bus/stream/list", question)).payload).streams[0]
    if broker is None or broker == info.broker:
        return info
    part = next((part for part in info.parts if part.broker == broker), None)
    if part is None:
        raise Rejected(f"the cluster has no node {broker} with a stream {name!r}", code=Code.NO_STREAM)
    if part.error:
        raise StoreFailed(f"the stream {name!r} of {part.node} can't be read now: {part.error}")
    figures = {key: getattr(part, key) for key in part.__struct_fields__ if key not in {"node", "error"}}
    return msgspec.structs.replace(info, **figures, dropped=0, held_since=None, stuck=None, channels=())


def _read(payload: bytes) -> StreamInfo:
    try:
        return msgspec.json.decode(payload, type=StreamInfo)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"the broker's answer does not describe a stream: {error}") from error


def read_streams(message: Message) -> list[StreamInfo]:
    """Decode the streams of the broker's answer to $bus/stream/list."""
    return _read_many(message.payload).streams


def _read_many(payload: bytes) -> _Listed:
    try:
        return msgspec.json.decode(payload, type=_Listed)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"the broker's answer is not a list of streams: {error}") from error
