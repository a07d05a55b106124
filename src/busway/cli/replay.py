"""`busway replay`: prints or saves the messages of streams, with --follow also new ones. Called by busway.cli.app."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Self, TypeAlias

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import busway
from busway.cli.common import completion, export, field_flags, flags, logs, terminal, values
from busway.cli.common.connect import Link, linked
from busway.cli.common.output import Printer, read, renderer
from busway.cli.common.progress import Rate
from busway.fields import Where
from busway.message import Message
from busway.positions import Position, Positions
from busway.streams import DEFAULT, StreamInfo, is_name
from busway.topic import matches

_Position: TypeAlias = int | datetime | str | Positions | None
_KINDS: Final = (".arrow", ".parquet")


@linked
def replay(
    link: Link,
    what: Annotated[
        str,
        typer.Argument(
            help="Name of a stream, or a topic or pattern: price/*/eur, log/**",
            show_default=False,
            parser=values.pattern,
            autocompletion=completion.streams_and_topics,
            metavar="STREAM|PATTERN",
        ),
    ],
    since: Annotated[
        str,
        typer.Option(
            "--since",
            help="Where to begin: all, a duration back (1h), a time (2026-01-31T12:00), an offset or a position.",
            metavar="POSITION",
        ),
    ] = "all",
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="Where to end, exclusive; a value as for --since.",
            metavar="POSITION",
            show_default="the current end",
        ),
    ] = None,
    topic: flags.Pattern = None,
    where: flags.Where = None,
    count: flags.Count = None,
    follow: Annotated[bool, typer.Option("--follow", help="Continue with messages as they are published.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Save the messages into this file: .arrow or .parquet.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    raw: flags.Raw = False,
    json: flags.Json = False,
    format: Annotated[  # noqa: A002 - the flag's name
        str | None,
        typer.Option(
            "--format",
            help="Format of a line, as in busway sub: {time} {topic} {payload} {position} {offset} {sequence} ...",
            show_default=False,
        ),
    ] = None,
    quiet: flags.Quiet = False,
) -> None:
    """Print the stored messages of a stream, or of a topic in all streams; in a cluster node by node.

    An offset is a position at the node of the connection, so with an offset only messages of that node are printed.

    busway replay orders --since 1h --json
    busway replay 'orders/eu/*' --follow
    busway replay orders --out orders.parquet
    """
    if sum((raw, json, format is not None, out is not None)) > 1:
        raise typer.BadParameter("--raw, --json, --format and --out exclude each other")
    if follow and (out is not None or to is not None):
        raise typer.BadParameter("--follow excludes --to and --out, because it has no end: leave them out")
    if out is not None and out.suffix not in _KINDS:
        raise typer.BadParameter(f"--out: {out.name!r} has another suffix: give a file with .arrow or .parquet")
    begin = flags.checked(lambda: values.position(since))
    end = None if to is None else flags.checked(lambda: values.position(to))
    render = flags.checked(lambda: renderer(raw=raw, json=json, format=format))
    rules = field_flags.rules(where)
    note = (lambda _text: None) if quiet else terminal.note

    async def run() -> None:
        async with link.connect(reconnect=follow) as bus:
            query = await _choose(bus, what, topic, begin, note)
            if not follow:
                query = query.to(end)
                await _check(query)
            if follow:
                await _follow(bus, query, rules, Printer(render, count, note), note)
                return
            shown = not quiet and terminal.notes.is_terminal and (out is not None or not terminal.out.is_terminal)
            with _Bar(shown=shown) as bar:
                if out is None:
                    done = await _print(query, rules, count, render, bar)
                else:
                    done = await _save(query, rules, count, out, bar)
            if not done and query.only is None and not await query.stored():
                note(f"nothing is stored that matches {what!r}")
            note(f"{done} message{'s' * (done != 1)}")
            if query.lost:
                note(f"{query.lost} messages were removed before they were read")

    logs.without_missed()
    terminal.run(run)


@dataclass(frozen=True, slots=True)
class _Query:
    """The messages to print: of one stream or of all streams that may have them, at all nodes."""

    streams: list[tuple[busway.Stream, _Position, _Position]]
    """Each stream with its first position and its end, exclusive. The first is at the broker of the connection."""
    pattern: str
    begin: _Position
    only: str | None
    """The name of the stream, if one was given."""
    broker: str
    """The guid of the broker of the connection."""

    @property
    def lost(self) -> int:
        return sum(stream.lost for stream, _, _ in self.streams)

    def to(self, end: _Position) -> "_Query":
        """Return the query with an end, exclusive."""
        if isinstance(end, str) and ":" in end:
            positions = _end_positions(end)
            if any((stream.broker, stream.name) in positions for stream, _, _ in self.streams):
                return self._ending(
                    [(stream, positions.get((stream.broker, stream.name))) for stream, _, _ in self.streams]
                )
            return self._ending([(self.streams[0][0], end)])  # the broker rejects the position with a reason
        if isinstance(end, int):  # an offset at the broker of the connection
            return self._ending([(stream, end) for stream, _, _ in self.streams if stream.broker == self.broker])
        return self._ending([(stream, end) for stream, _, _ in self.streams])

    def _ending(self, ends: Sequence[tuple[busway.Stream, _Position]]) -> "_Query":
        begins = {id(stream): begin for stream, begin, _ in self.streams}
        return replace(self, streams=[(stream, begins[id(stream)], end) for stream, end in ends])

    async def stored(self) -> bool:
        """Return True if any message is stored that matches the pattern."""
        for stream, _, _ in self.streams:
            if stream.broker != self.broker:
                async with contextlib.aclosing(stream.read(topic=self.pattern)) as reading:
                    async for _ in reading:
                        return True
            elif any(matches(self.pattern, one.topic) for one in await stream.topics()):
                return True
        return False


async def _choose(
    bus: busway.Bus, name: str, topic: str | None, begin: _Position, note: Callable[[str], None]
) -> _Query:
    known = await bus.streams(parts=True)
    if known and known[0].unreached:
        note(f"the messages of {', '.join(known[0].unreached)} are missing: these nodes can't be reached now")
    broker = str(bus.server["guid"])
    if isinstance(begin, str) and ":" in begin:
        begin = Positions.parse(begin)  # reading begins behind the message of the position, as with subscribe(since=)
    if found := [info for info in known if info.name == name]:
        streams = await _parts(bus, found, begin)
        return _Query(streams, "**" if topic is None else topic, begin, name, broker)
    if topic is not None:
        raise terminal.Ended(
            terminal.REJECTED,
            f"busway: there is no stream {name!r}; --topic selects messages of a stream: give the name of one",
        )
    if isinstance(begin, int):
        raise terminal.Ended(
            terminal.REJECTED,
            f"busway: there is no stream {name!r}; an offset belongs to a stream: give the name of one",
        )
    chosen = [info for info in known if _may_store(info, name)]
    note(f"{name} in {' '.join(info.name for info in chosen)}")
    return _Query(await _parts(bus, chosen, begin), name, begin, None, broker)


async def _parts(
    bus: busway.Bus, chosen: list[StreamInfo], begin: _Position
) -> list[tuple[busway.Stream, _Position, _Position]]:
    """Return the part of each stream at each node, with its first position."""
    known = [
        (info.name, guid)
        for info in chosen
        for guid in (
            info.broker,
            *(part.broker for part in info.parts if not part.error and part.broker != info.broker),
        )
    ]
    if isinstance(begin, int):
        known = known[:1]  # an offset is a position at one node
    positions = begin if isinstance(begin, Positions) else None
    if positions is not None and len(chosen) == 1 and not any((guid, name) in positions for name, guid in known):
        known, positions = known[:1], None  # the broker rejects the position with a reason
    # Streams that the position does not name are read from their beginning.
    return [
        (await bus.stream(name, broker=guid), begin if positions is None else positions.get((guid, name)), None)
        for name, guid in known
    ]


def _end_positions(text: str) -> Positions:
    """Parse the end: one position, or the positions of several streams."""
    if ":+" in text:
        return Positions.parse(text)
    position = Position.parse(text)
    return Positions({(position.broker, position.stream): position.offset})


async def _check(query: _Query) -> None:
    """Reject a name that is neither a stream nor a topic with stored messages."""
    name = query.pattern
    if query.only is None and is_name(name) and not await query.stored():
        raise terminal.Ended(
            terminal.REJECTED,
            f"busway: there is no stream {name!r}, and no message is stored on a topic {name!r}: 'busway stream list' shows the streams",
        )


def _may_store(info: StreamInfo, pattern: str) -> bool:
    """Return True if the stream may have messages of the pattern."""
    if info.name == DEFAULT or pattern.startswith("re:"):
        return True
    return any(matches(pattern, topic) for topic in (*info.topics, *info.former))


async def _each(query: _Query, rules: Where | None, count: int | None, bar: "_Bar") -> AsyncIterator[list[Message]]:
    left = count
    for stream, begin, end in query.streams:
        bar.begin(await stream.info())
        async with contextlib.aclosing(stream.read(begin, end, topic=query.pattern, where=rules)) as reading:
            async for batch in _cut(reading, left):
                bar.reached(batch[-1].offset or 0, len(batch))
                left = None if left is None else left - len(batch)
                yield batch
        if left == 0:
            return


async def _cut(reading: AsyncGenerator[list[Message], None], left: int | None) -> AsyncIterator[list[Message]]:
    async for batch in reading:
        if left is not None:
            batch = batch[:left]  # noqa: PLW2901
            left -= len(batch)
        yield batch
        if left == 0:
            return


async def _print(
    query: _Query,
    rules: Where | None,
    count: int | None,
    render: Callable[[list[Message], int], bytes],
    bar: "_Bar",
) -> int:
    done = 0
    async for batch in _each(query, rules, count, bar):
        await terminal.stream(render(batch, done))
        done += len(batch)
    return done


async def _save(query: _Query, rules: Where | None, count: int | None, out: Path, bar: "_Bar") -> int:
    done = 0
    with export.writer(out) as write:
        for stream, begin, end in query.streams:
            bar.begin(await stream.info())
            async with contextlib.aclosing(stream.arrow(begin, end, topic=query.pattern, where=rules)) as reading:
                async for batch in reading:
                    wanted = batch if count is None else batch.slice(0, count - done)
                    await asyncio.to_thread(write, wanted)
                    done += int(wanted.num_rows)
                    bar.reached(batch.column("offset")[-1].as_py(), wanted.num_rows)
                    if done == count:
                        return done
    return done


async def _follow(
    bus: busway.Bus, query: _Query, rules: Where | None, printer: Printer, note: Callable[[str], None]
) -> None:
    since: Any = query.begin
    patterns = [query.pattern]
    if query.only is not None:
        info = await query.streams[0][0].info()
        if isinstance(since, int):
            since = Positions({(info.broker, info.name): since})
        if query.pattern == "**":
            patterns = list(info.topics) or patterns
    async with contextlib.AsyncExitStack() as stack:
        subscriptions = [
            await stack.enter_async_context(bus.subscribe(pattern, where=rules, since=since, patience=0.0))
            for pattern in patterns
        ]
        note(f"following {' '.join(patterns)} at {bus.url}; Ctrl-C ends")
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(read(subscription, printer, patterns[:index], query.only))
                for index, subscription in enumerate(subscriptions)
            ]
            await printer.done.wait()
            for task in running:
                task.cancel()


class _Bar:
    """Progress bar on stderr that compares the offset of a read with the end of its stream. Draws only if `shown`."""

    def __init__(self, *, shown: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[messages]:,} messages"),
            Rate(),
            TimeRemainingColumn(),
            console=terminal.notes,
            disable=not shown,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None, messages=0)
        self._first: int | None = None
        self._messages = 0
        self._end = 0

    def begin(self, info: StreamInfo) -> None:
        self._first, self._end = None, info.next
        self._progress.reset(self._task, description=info.name, total=None, messages=self._messages)

    def reached(self, offset: int, messages: int) -> None:
        if self._first is None:
            self._first = max(offset + 1 - messages, 0)
        self._messages += messages
        self._progress.update(
            self._task,
            completed=offset + 1 - self._first,
            total=max(self._end - self._first, 1),
            messages=self._messages,
        )

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
