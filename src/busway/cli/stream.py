"""`busway stream list|info|create|update|remove|recover`: manage streams. Called by busway.cli.app."""

import struct
import sys
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Annotated, Any, Final

import msgspec
import typer

import busway
from busway._core import block_messages
from busway.cli.channels import channel
from busway.cli.common import flags, terminal, values
from busway.cli.common.connect import Link, linked
from busway.cli.common.output import renderer
from busway.cli.common.tables import ordered, pairs, rows
from busway.client.streams.reader import HEAD, PATIENCE
from busway.common.durations import seconds
from busway.streams import Safety, Store, StreamInfo

_SAFETY = "What a durable publish waits for: the message is in memory, written, synced to the disk, or written by the broker and a mirror."
_AGE = "Age at which messages are removed (12h, 7d); none: never."
_BYTES = "Bytes above which the oldest messages are removed (64m, 2g); none: unlimited."
_COUNT = "Number above which the oldest messages are removed (10k, 5m); none: unlimited."
_UNTIL = "A channel: messages are removed only after it acknowledged them (the channel of the archive is archived); none: no channel."
_ONCE = "How long the broker recognizes messages that a publisher resends."


_FIRST = (
    "name",
    "topics",
    "messages",
    "bytes",
    "total",
    "total_bytes",
    "store",
    "safety",
    "max_age",
    "max_bytes",
    "max_count",
)
"""The figures of a stream that are shown first."""


def _text(name: str, *, help: str, default: str | bool = False) -> Any:  # noqa: A002 - typer's own word
    metavar = {"--max-bytes": "SIZE", "--max-count": "N", "--database": "URL", "--retain-until": "CHANNEL"}.get(
        name, "TIME"
    )
    return typer.Option(name, help=help, show_default=default, metavar=metavar)


@linked
def stream_list(link: Link, json: flags.Json = False) -> None:
    """List the streams; in a cluster with the figures of all nodes.

    busway stream list
    """

    async def show() -> None:
        async with link.connect(reconnect=False) as bus:
            found = await bus.streams(parts=True)
        if json:
            for info in found:
                terminal.record(_object(info))
        else:
            terminal.out.print(rows("", [_whole(info) for info in found], spare=SPARE))
        if found:
            report_unreached(found[0])

    terminal.run(show)


@linked
def stream_info(
    link: Link,
    stream: channel.Stream,
    topics: Annotated[bool, typer.Option("--topics", help="List the stored messages of each topic, too.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show figures that are zero or empty, too.")] = False,
    json: flags.Json = False,
) -> None:
    """Show the figures and settings of a stream; in a cluster also the part of each node.

    busway stream info orders --topics
    """

    async def show() -> None:
        async with link.connect(reconnect=False) as bus:
            handle = await bus.stream(stream)
            info = await handle.info(parts=True)
            found = _object(info)
            held = [topic._asdict() for topic in await handle.topics()] if topics else []
        if json:
            terminal.record(found | {"stored": held} if topics else found)
            return
        report_unreached(info)
        channels, parts = found.pop("channels"), found.pop("parts")
        del found["unreached"]
        if len(parts) == 1:
            del found["total"], found["total_bytes"]
        found["messages"] = found.pop("count")
        terminal.out.print(pairs("", ordered(found, _FIRST, everything=everything)))
        if len(parts) > 1:
            terminal.out.print(rows("parts", [_part(handle) for handle in parts]))
        if channels:
            terminal.out.print(
                rows(
                    "channels", [channel.row(handle) for handle in channels], optional=channel.RARE, spare=channel.SPARE
                )
            )
        if held:
            terminal.out.print(rows("topics", held))

    terminal.run(show)


@linked
def stream_create(
    link: Link,
    stream: channel.Stream,
    topics: Annotated[
        list[str],
        typer.Argument(
            help="Topics or patterns that the stream stores.",
            show_default=False,
            parser=values.pattern,
            metavar="PATTERN",
        ),
    ],
    store: Annotated[
        Store | None,
        typer.Option(
            "--store",
            help="memory, disk, db (a SQLite file), or the name of a database "
            "(busway serve --store); default: disk if the broker has a data folder, else memory.",
            metavar="NAME",
        ),
    ] = None,
    safety: Annotated[Safety, typer.Option("--safety", help=_SAFETY)] = "written",
    max_age: Annotated[str, _text("--max-age", help=_AGE, default="none")] = "none",
    max_bytes: Annotated[str, _text("--max-bytes", help=_BYTES, default="none")] = "none",
    max_count: Annotated[str, _text("--max-count", help=_COUNT, default="none")] = "none",
    once: Annotated[str, _text("--once", help=_ONCE, default="15m")] = "15m",
    retain_until: Annotated[str, _text("--retain-until", help=_UNTIL, default="none")] = "none",
    json: flags.Json = False,
) -> None:
    """Create a stream. An existing stream with the same settings is fine.

    busway stream create orders 'orders/**' --max-age 7d --safety synced
    """
    limits = _limits(max_age, max_bytes, max_count, once, retain_until)

    async def create() -> None:
        async with link.connect(reconnect=False) as bus:
            made = await bus.create_stream(stream, topics, store=store, safety=safety, **limits)
            _print(await made.info(), json=json)

    terminal.run(create)


@linked
def stream_update(
    link: Link,
    stream: channel.Stream,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            help="A topic or pattern that the stream stores from now on, instead of the former ones; repeatable.",
            parser=values.pattern,
            metavar="PATTERN",
        ),
    ] = None,
    safety: Annotated[Safety | None, typer.Option("--safety", help=_SAFETY)] = None,
    max_age: Annotated[str | None, _text("--max-age", help=_AGE)] = None,
    max_bytes: Annotated[str | None, _text("--max-bytes", help=_BYTES)] = None,
    max_count: Annotated[str | None, _text("--max-count", help=_COUNT)] = None,
    once: Annotated[str | None, _text("--once", help=_ONCE)] = None,
    retain_until: Annotated[str | None, _text("--retain-until", help=_UNTIL)] = None,
    json: flags.Json = False,
) -> None:
    """Change settings of a stream; the others stay as they are.

    busway stream update orders --max-age 30d --max-bytes none
    """
    changes = _limits(max_age, max_bytes, max_count, once, retain_until)
    if topic:
        changes["topics"] = topic
    if safety is not None:
        changes["safety"] = safety
    if not changes:
        raise typer.BadParameter("nothing to change: give --max-age, --topic or another setting")

    async def update() -> None:
        async with link.connect(reconnect=False) as bus:
            changed = await bus.update_stream(stream, **changes)
            _print(await changed.info(), json=json)

    terminal.run(update)


@linked
def stream_remove(
    link: Link,
    stream: channel.Stream,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: flags.Json = False,
) -> None:
    """Remove a stream and all its stored messages.

    busway stream remove orders --yes
    """
    found: list[StreamInfo] = []

    async def look() -> None:
        async with link.connect(reconnect=False) as bus:
            found.append(await (await bus.stream(stream)).info())

    async def remove() -> None:
        async with link.connect(reconnect=False) as bus:
            removed = await bus.remove_stream(stream)
        if json:
            terminal.record({"name": stream, "removed": removed.count})

    if not yes:
        terminal.run(look)
        _confirm(found[0])
    terminal.run(remove)


@linked
def stream_recover(
    link: Link,
    folder: Annotated[
        str | None,
        typer.Argument(
            help="A folder of the list; without it the list is printed.", show_default=False, metavar="FOLDER"
        ),
    ] = None,
    publish: Annotated[
        bool, typer.Option("--publish", help="Publish these messages again, durable and to their topics.")
    ] = False,
    json: flags.Json = False,
) -> None:
    """List, print or publish again the records that only a replaced node had.

    They were set aside when the node returned after the promotion of its mirror. Nothing removes them: delete the
    folder in the data folder of the broker when they are not needed any more.

    busway stream recover set-aside/3f2a9c1b3f2a9c1b3f2a9c1b3f2a9c1b/orders --publish
    """

    async def run() -> None:
        async with link.connect(reconnect=False) as bus:
            if folder is None:
                found = (await bus.request("$bus/stream/aside", timeout=PATIENCE)).json()["aside"]
                _print_aside(found, json=json)
                return
            count = 0
            async for messages in _records(bus, folder):
                count += len(messages)
                if publish:
                    for message in messages:
                        await bus.publish(message.topic, message.payload, fields=message.fields, durable=True)
                else:
                    await terminal.stream(render(messages, 0))
            terminal.note(f"{count} message{'s' * (count != 1)}{' published again' * publish}")

    render = renderer(raw=False, json=json, format=None)
    if publish and folder is None:
        raise typer.BadParameter("--publish needs the folder of the records: see 'busway stream recover'")
    terminal.run(run)


def _print_aside(found: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        for aside in found:
            terminal.record(aside)
    elif found:
        keys = ("stream", "count", "first", "next", "folder")
        terminal.out.print(rows("", [{key: aside[key] for key in keys} for aside in found]))
    else:
        terminal.note("nothing is set aside at this broker")


async def _records(bus: busway.Bus, folder: str) -> AsyncGenerator[list[busway.Message], None]:
    """Yield the messages that are set aside in a folder."""
    _, guid, stream = folder.split("/") if folder.count("/") == 2 else ("", "", folder)
    offset, end = 0, 1
    while offset < end:
        question = msgspec.json.encode({"folder": folder, "from": offset})
        answer = (await bus.request("$bus/stream/recover", question, timeout=PATIENCE)).payload
        offset, end = struct.unpack_from("<QQ", answer)
        yield block_messages(answer, (guid, stream), head=HEAD)


def _confirm(info: StreamInfo) -> None:
    size = f"{info.count:,} messages, {values.shown_size(info.bytes)} bytes"
    if not sys.stdin.isatty():
        terminal.note(f"busway: stream {info.name!r} holds {size}: give --yes to remove it without a question")
        raise typer.Exit(terminal.USAGE)
    print(f"Remove the stream {info.name!r} with {size}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise typer.Exit(terminal.ERROR)


def _limits(
    max_age: str | None, max_bytes: str | None, max_count: str | None, once: str | None, retain_until: str | None
) -> dict[str, Any]:
    """Return the limits that are given as flags; `none` removes a limit."""
    readers: dict[str, Callable[[str], Any]] = {"max_bytes": values.size, "max_count": values.count}
    readers |= {name: partial(_age, f"--{name.replace('_', '-')}") for name in ("max_age", "once")}
    readers["retain_until"] = values.channel_name
    given = {"max_age": max_age, "max_bytes": max_bytes, "max_count": max_count, "once": once}
    given["retain_until"] = retain_until

    def read() -> dict[str, Any]:
        return {
            key: None if text == "none" and key != "once" else readers[key](text)
            for key, text in given.items()
            if text is not None
        }

    return flags.checked(read)


def _age(flag: str, text: str) -> float:
    return seconds(flag, values.with_unit(text))


def _object(info: StreamInfo) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(info)
    return made | {"count": info.count, "total": info.total, "total_bytes": info.total_bytes}


def _print(info: StreamInfo, *, json: bool) -> None:
    if json:
        terminal.record(_object(info))


def report_unreached(info: StreamInfo) -> None:
    """Report nodes that could not be reached, so that their figures are missing."""
    if info.unreached:
        terminal.note(
            f"busway: the figures of {', '.join(info.unreached)} are missing: these nodes can't be reached now"
        )


def _whole(info: StreamInfo) -> dict[str, Any]:
    """Return a row with the totals of all nodes. Offsets are shown only if there is one node."""
    shown = row(_object(info)) | {"nodes": ""}
    if len(info.parts) > 1:
        shown |= {"messages": info.total, "bytes": values.shown_size(info.total_bytes), "first": "", "next": ""}
        shown |= {"buckets": sum(part.buckets or 0 for part in info.parts)}
        shown |= {"damage": sum(part.damage or 0 for part in info.parts)}
        shown |= {"held": sum(part.held or 0 for part in info.parts) if info.retain_until else ""}
        shown["nodes"] = sum(not part.error for part in info.parts)
    return shown


def _part(part: dict[str, Any]) -> dict[str, Any]:
    known = not part["error"]
    return {
        "node": part["node"],
        "broker": part["broker"][:8],
        "messages": part["next"] - part["first"] if known else "",
        "bytes": values.shown_size(part["bytes"]) if known else "",
        "first": part["first"],
        "next": part["next"],
        "damage": part["damage"],
        "mirrored": "" if part["mirrored"] is None else "yes" if part["mirrored"] else "no",
        "unreached": part["error"],
    }


SPARE: Final = ("first", "buckets", "next", "store")
"""Columns of a list of streams that are left out on a narrow screen."""


def row(figures: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a list of streams."""
    return {
        "stream": figures["name"],
        "topics": " ".join(topic or '""' for topic in figures["topics"]) or "all others",
        "store": figures["store"],
        "safety": figures.get("level") or figures["safety"],
        "kept": values.shown_duration(figures["max_age"]),
        "messages": figures["next"] - figures["first"],
        "held": figures["held"] if figures["retain_until"] else "",
        "bytes": values.shown_size(figures["bytes"]),
        "buckets": figures["buckets"],
        "first": figures["first"],
        "next": figures["next"],
        "damage": figures["damage"],
    }
