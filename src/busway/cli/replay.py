"""`busway replay`: print or save what streams hold, and go on with what comes if asked to."""

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

_Place: TypeAlias = int | datetime | str | Positions | None
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
            help="Where to begin: all, a length of time back (1h), a time (2026-01-31T12:00), an offset or a position.",
            metavar="PLACE",
        ),
    ] = "all",
    to: Annotated[
        str | None,
        typer.Option(
            "--to", help="Where to end, exclusive; as --since.", metavar="PLACE", show_default="the current end"
        ),
    ] = None,
    topic: flags.Pattern = None,
    where: flags.Where = None,
    count: flags.Count = None,
    follow: Annotated[bool, typer.Option("--follow", help="Continue with messages as they are published.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Save into this file: .arrow or .parquet.", metavar="FILE", show_default=False
        ),
    ] = None,
    raw: flags.Raw = False,
    json: flags.Json = False,
    format: Annotated[  # noqa: A002 - the flag's name
        str | None,
        typer.Option(
            "--format",
            help="As of sub: {time} {topic} {payload} {position} {offset} {sequence} ...",
            show_default=False,
        ),
    ] = None,
    quiet: flags.Quiet = False,
) -> None:
    """Print the messages that a stream holds, or those of a topic in all streams; in a cluster those of all nodes, one node after the other.

    An offset is a place at the node that is asked, so with one only that node's messages are printed.

    busway replay orders --since 1h --json
    busway replay 'orders/eu/*' --follow
    busway replay orders --out orders.parquet
    """
    if sum((raw, json, format is not None, out is not None)) > 1:
        raise typer.BadParameter("--raw, --json, --format and --out exclude each other")
    if follow and (out is not None or to is not None):
        raise typer.BadParameter("--follow has no end: leave --to and --out out")
    if out is not None and out.suffix not in _KINDS:
        raise typer.BadParameter(f"--out: {out.name!r} is neither .arrow nor .parquet")
    begin = flags.checked(lambda: values.place(since))
    end = None if to is None else flags.checked(lambda: values.place(to))
    render = flags.checked(lambda: renderer(raw=raw, json=json, format=format))
    rules = field_flags.rules(where)
    note = (lambda _text: None) if quiet else terminal.note

    async def run() -> None:
        async with link.connect(reconnect=follow) as bus:
            wanted = await _choose(bus, what, topic, begin, note)
            if not follow:
                wanted = wanted.to(end)
                await _check(wanted)
            if follow:
                await _follow(bus, wanted, rules, Printer(render, count, note), note)
                return
            shown = not quiet and terminal.notes.is_terminal and (out is not None or not terminal.out.is_terminal)
            with _Bar(shown=shown) as bar:
                if out is None:
                    done = await _print(wanted, rules, count, render, bar)
                else:
                    done = await _save(wanted, rules, count, out, bar)
            if not done and wanted.only is None and not await wanted.stored():
                note(f"nothing is stored that matches {what!r}")
            note(f"{done} message{'s' * (done != 1)}")
            if wanted.lost:
                note(f"{wanted.lost} messages were removed before they were read")

    logs.without_missed()
    terminal.run(run)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is asked for: of one stream, or of all that may hold it, in the parts of all nodes."""

    streams: list[tuple[busway.Stream, _Place, _Place]]
    """Each with the place to begin at and that to end before. The first one is of the broker itself."""
    pattern: str
    begin: _Place
    only: str | None
    """The one stream, if it was named."""
    broker: str
    """The node that is asked."""

    @property
    def lost(self) -> int:
        return sum(stream.lost for stream, _, _ in self.streams)

    def to(self, end: _Place) -> "_Wanted":
        """The same, but only to before a place."""
        if isinstance(end, str) and ":" in end:
            places = _places(end)
            if any((one.broker, one.name) in places for one, _, _ in self.streams):
                return self._ending([(one, places.get((one.broker, one.name))) for one, _, _ in self.streams])
            return self._ending([(self.streams[0][0], end)])  # which says what is wrong with it
        if isinstance(end, int):  # of the broker's own part
            return self._ending([(one, end) for one, _, _ in self.streams if one.broker == self.broker])
        return self._ending([(one, end) for one, _, _ in self.streams])

    def _ending(self, ends: Sequence[tuple[busway.Stream, _Place]]) -> "_Wanted":
        begins = {id(one): begin for one, begin, _ in self.streams}
        return replace(self, streams=[(one, begins[id(one)], end) for one, end in ends])

    async def stored(self) -> bool:
        """Whether there is anything of it at all."""
        for stream, _, _ in self.streams:
            if stream.broker != self.broker:
                async with contextlib.aclosing(stream.read(topic=self.pattern)) as reading:
                    async for _ in reading:
                        return True
            elif any(matches(self.pattern, one.topic) for one in await stream.topics()):
                return True
        return False


async def _choose(bus: busway.Bus, what: str, topic: str | None, begin: _Place, note: Callable[[str], None]) -> _Wanted:
    known = await bus.streams(parts=True)
    if known and known[0].unreached:
        note(f"not reached, so what is stored there is left out: {', '.join(known[0].unreached)}")
    broker = str(bus.server["guid"])
    if isinstance(begin, str) and ":" in begin:
        begin = Positions.parse(begin)  # the place of a message is what lies behind it, as for subscribe(since=)
    if found := [one for one in known if one.name == what]:
        streams = await _parts(bus, found, begin)
        return _Wanted(streams, "**" if topic is None else topic, begin, what, broker)
    if topic is not None:
        raise terminal.Ended(terminal.REJECTED, f"busway: there is no stream {what!r}; --topic is for a stream")
    if isinstance(begin, int):
        raise terminal.Ended(terminal.REJECTED, f"busway: there is no stream {what!r}; an offset is one of a stream")
    chosen = [one for one in known if _takes(one, what)]
    note(f"{what} in {' '.join(one.name for one in chosen)}")
    return _Wanted(await _parts(bus, chosen, begin), what, begin, None, broker)


async def _parts(
    bus: busway.Bus, chosen: list[StreamInfo], begin: _Place
) -> list[tuple[busway.Stream, _Place, _Place]]:
    """What each node has of these streams, and where to begin there."""
    known = [
        (info.name, guid)
        for info in chosen
        for guid in (
            info.broker,
            *(part.broker for part in info.parts if not part.error and part.broker != info.broker),
        )
    ]
    if isinstance(begin, int):
        known = known[:1]  # an offset is a place at one node
    places = begin if isinstance(begin, Positions) else None
    if places is not None and len(chosen) == 1 and not any((guid, name) in places for name, guid in known):
        known, places = known[:1], None  # which says what is wrong with it
    # A position tells of some streams; others are wanted whole.
    return [
        (await bus.stream(name, broker=guid), begin if places is None else places.get((guid, name)), None)
        for name, guid in known
    ]


def _places(text: str) -> Positions:
    """Up to before this position, or as far as these have come."""
    if ":+" in text:
        return Positions.parse(text)
    one = Position.parse(text)
    return Positions({(one.broker, one.stream): one.offset})


async def _check(wanted: _Wanted) -> None:
    """What may be the name of a stream, and is none, is a topic only if there is such a topic."""
    name = wanted.pattern
    if wanted.only is None and is_name(name) and not await wanted.stored():
        raise terminal.Ended(
            terminal.REJECTED, f"busway: there is no stream {name!r}, and nothing is stored on such a topic"
        )


def _takes(info: StreamInfo, pattern: str) -> bool:
    if info.name == DEFAULT or pattern.startswith("re:"):
        return True
    return any(matches(pattern, one) for one in (*info.topics, *info.former))


async def _each(wanted: _Wanted, rules: Where | None, count: int | None, bar: "_Bar") -> AsyncIterator[list[Message]]:
    left = count
    for stream, begin, end in wanted.streams:
        bar.begin(await stream.info())
        async with contextlib.aclosing(stream.read(begin, end, topic=wanted.pattern, where=rules)) as reading:
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
    wanted: _Wanted,
    rules: Where | None,
    count: int | None,
    render: Callable[[list[Message], int], bytes],
    bar: "_Bar",
) -> int:
    done = 0
    async for batch in _each(wanted, rules, count, bar):
        await terminal.stream(render(batch, done))
        done += len(batch)
    return done


async def _save(wanted: _Wanted, rules: Where | None, count: int | None, out: Path, bar: "_Bar") -> int:
    done = 0
    with export.writer(out) as write:
        for stream, begin, end in wanted.streams:
            bar.begin(await stream.info())
            async with contextlib.aclosing(stream.arrow(begin, end, topic=wanted.pattern, where=rules)) as reading:
                async for batch in reading:
                    some = batch if count is None else batch.slice(0, count - done)
                    await asyncio.to_thread(write, some)
                    done += int(some.num_rows)
                    bar.reached(batch.column("offset")[-1].as_py(), some.num_rows)
                    if done == count:
                        return done
    return done


async def _follow(
    bus: busway.Bus, wanted: _Wanted, rules: Where | None, printer: Printer, note: Callable[[str], None]
) -> None:
    since: Any = wanted.begin
    patterns = [wanted.pattern]
    if wanted.only is not None:
        info = await wanted.streams[0][0].info()
        if isinstance(since, int):
            since = Positions({(info.broker, info.name): since})
        if wanted.pattern == "**":
            patterns = list(info.topics) or patterns
    async with contextlib.AsyncExitStack() as stack:
        subscriptions = [
            await stack.enter_async_context(bus.subscribe(pattern, where=rules, since=since, patience=0.0))
            for pattern in patterns
        ]
        note(f"follows {' '.join(patterns)} at {bus.url}; Ctrl-C ends")
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(read(one, printer, patterns[:place], wanted.only))
                for place, one in enumerate(subscriptions)
            ]
            await printer.done.wait()
            for task in running:
                task.cancel()


class _Bar:
    """A progress bar on stderr, or none: how far a read has come, by offsets."""

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
