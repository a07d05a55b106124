"""Streams as a client sees them: make, change and remove them, look into them, and read what they hold."""

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
from busway.client.streams.reader import HEAD, Place, ReadAhead, Wanted, ask, offset_of
from busway.common.checks import check_count, check_type
from busway.errors import Code, InvalidRule, Rejected, RemoteProtocolError, StoreFailed
from busway.fields import Compiled, Where, compile_where
from busway.streams import SETTINGS, Safety, Store, StoredTopic, StreamConfig, StreamInfo

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = arrow_columns.PLACED
"""The columns that arrow() gives unless it is told which."""


class Stream:
    """A stream of the broker; made by `bus.create_stream()` and `bus.stream()`."""

    def __init__(self, core: Core, sender: Sender, info: StreamInfo, part: str | None = None) -> None:
        self._part = part
        """The node whose part it is; None: the one that this client is connected to."""
        self._core = core
        self._sender = sender
        self._info = info
        self.lost = 0
        """Messages that reads of this object should have given and that are gone for good."""

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def broker(self) -> str:
        """Guid of the broker that it belongs to."""
        return self._info.broker

    async def info(self, *, parts: bool = False) -> StreamInfo:
        """Its settings and figures as they are now: of the part of one node, and with `parts` also what each node of the cluster has of it."""
        self._info = await _info(self._sender, self.name, self._part, parts=parts)
        return self._info

    @property
    def _elsewhere(self) -> bool:
        return self._part is not None and self._part != self._core.broker

    async def topics(self, pattern: str = "**") -> list[StoredTopic]:
        """What it holds of each topic that matches, in the order of their names."""
        self._check_here("topics")
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
        self._check_here("find")
        check_count("sequence", sequence)
        question = {"name": self.name, "topic": topic, "sequence": sequence}
        offset: int | None = (await ask(self._sender, "$bus/stream/find", question)).json()["offset"]
        return offset

    async def locate(self, place: Place) -> int:
        """The offset that a place means: for a time that of the first message stored then or later."""
        info = await self.info()
        return await offset_of(self._sender, info, "place", place, info.first, elsewhere=self._elsewhere)

    def _check_here(self, what: str) -> None:
        if self._elsewhere:
            raise ValueError(
                f"{what}() is asked of the node that has the stream: connect to it, or ask for read() or info()"
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
        """Stored messages, as an async iterator over lists of at most `batch`; it ends with the last one there is now.

        ::

            async for messages in stream.read("1h", topic="orders/*"):
                print(len(messages), messages[0].position)

        From a place (an offset, a position, a time, a length of time back; None: the first there is) to before another one
        (None: the end as it is now). What is gone meanwhile is skipped, counted in `lost` and told by the event `gap`.
        Neither messages that are to be delivered later nor expired ones are among them.
        """
        check_count("batch", batch)
        return self._read(from_, to, check_pattern(topic), compile_where(where), batch)

    async def _read(
        self, from_: Place | None, to: Place | None, pattern: str, rules: Compiled, batch: int
    ) -> AsyncGenerator[list[Message], None]:
        wanted = await self._wanted(from_, to, pattern, rules)
        async with aclosing(self._blocks(wanted)) as blocks:
            async for block in blocks:
                messages = block_messages(block, wanted.place, None, wanted.begin, wanted.end, wanted.now, HEAD)
                if rules.local:
                    messages = [one for one in messages if rules.accepts(one, self._report)]
                if 0 < len(messages) <= batch:
                    yield messages
                    continue
                for at in range(0, len(messages), batch):
                    yield messages[at : at + batch]

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
        """As read(), but an async iterator over Arrow record batches with these columns; needs `busway[arrow]`.

        With `expired` those that have expired are among them, so that every read of a range gives the same. Rules that are callables
        can't be asked here.
        """
        arrow_columns.arrow()
        wanted = arrow_columns.check_columns(columns)
        rules = compile_where(where)
        if rules.local:
            name = rules.predicates[0][0] if rules.predicates else ""
            raise InvalidRule(
                f"the rule for {name!r} is a callable, which is not asked for Arrow: write it as busway.expr(...)",
                name=name,
            )
        return self._arrow(from_, to, check_pattern(topic), rules, wanted, expired=expired)

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
        wanted = await self._wanted(from_, to, pattern, rules, expired=expired)
        same = {"broker": self.broker, "stream": self.name}
        async with aclosing(self._blocks(wanted)) as blocks:
            async for block in blocks:
                made = arrow_columns.record_batch(
                    block[HEAD:], columns, begin=wanted.begin, end=wanted.end, now=wanted.now, same=same
                )
                if made.num_rows:
                    yield made

    async def _wanted(
        self, from_: Place | None, to: Place | None, pattern: str, rules: Compiled, *, expired: bool = False
    ) -> Wanted:
        info = await self.info()
        there = self._elsewhere
        begin = await offset_of(self._sender, info, "from_", from_, info.first, elsewhere=there)
        end = await offset_of(self._sender, info, "to", to, info.next, elsewhere=there)
        return Wanted(info, begin, min(end, info.next), pattern, rules, expired, there)

    async def _blocks(self, wanted: Wanted) -> AsyncGenerator[bytes, None]:
        blocks = ReadAhead(self._core, self._sender, wanted)
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
    """The verbs of a bus for streams."""

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
        """Make a stream that stores what is published durably on these topics; one that is there with these settings is fine.

        `store` is memory, disk, db (a SQLite file in the broker's data folder) or the name that the operator of the broker has given
        a database; None: disk if the broker has a data folder, else memory. `safety` what a message is when
        its publish returns: in memory, written, or synced. Messages stay for `max_age`, or until there are more than `max_bytes`
        or `max_count`; None is no limit. With `retain_until`, the name of a channel, nothing leaves before that channel has done it,
        and nothing at all while there is no such channel. A message that is sent again within `once` is stored once. `note` is
        a text for those who use it. No two streams take the same topic; what was stored of these topics before stays in the stream where it is.
        """
        given = {
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
            given["store"] = store
        config = StreamConfig.make(name, **given)
        question = {key: getattr(config, key) for key in SETTINGS} | {"name": name}
        if "store" not in given:
            question["store"] = None
        return await self._manage("create", question)

    async def update_stream(
        self,
        name: str,
        **changes: Any,
    ) -> Stream:
        """Change settings of a stream, by the names create_stream() has for them; the others stay. Its store can't be changed.

        What it is to keep no longer goes at once, by whole buckets.
        """
        for key in changes:
            if key not in SETTINGS:
                raise TypeError(f"a stream has no setting {key!r}; there are {', '.join(SETTINGS)}")
        before = await _info(self._sender, name)
        made = before.changed(**changes)
        return await self._manage("update", {key: getattr(made, key) for key in changes} | {"name": name})

    async def remove_stream(self, name: str) -> StreamInfo:
        """Remove a stream and everything stored in it; what it was. Who waits for it to store something gets an error."""
        return _read((await ask(self._sender, "$bus/stream/remove", {"name": name})).payload)

    async def streams(self, *, parts: bool = False) -> list[StreamInfo]:
        """All streams of the broker, by name; with `parts` also what each node of its cluster has of them."""
        answer = await ask(self._sender, "$bus/stream/list", {"parts": True} if parts else {})
        return sorted(_read_many(answer.payload).streams, key=lambda one: one.name)

    async def stream(self, name: str, *, broker: str | None = None) -> Stream:
        """A stream, to look into it and to read it: what the broker has stored, or what another node of its cluster has, by its guid."""
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
    part = next((one for one in info.parts if one.broker == broker), None)
    if part is None:
        raise Rejected(f"no node {broker} with a stream {name!r} is known", code=Code.NO_STREAM)
    if part.error:
        raise StoreFailed(f"the stream {name!r} of {part.node} can't be read now: {part.error}")
    figures = {key: getattr(part, key) for key in part.__struct_fields__ if key not in {"node", "error"}}
    return msgspec.structs.replace(info, **figures, dropped=0, held_since=None, stuck=None, channels=())


def _read(payload: bytes) -> StreamInfo:
    try:
        return msgspec.json.decode(payload, type=StreamInfo)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"the broker's answer is no stream: {error}") from error


def read_streams(message: Message) -> list[StreamInfo]:
    """The streams in the broker's answer."""
    return _read_many(message.payload).streams


def _read_many(payload: bytes) -> _Listed:
    try:
        return msgspec.json.decode(payload, type=_Listed)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"the broker's answer is no list of streams: {error}") from error
