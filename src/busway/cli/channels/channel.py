"""`busway channel list|info|create|update|seek|pause|resume|remove`: manage channels. Called by busway.cli.app."""

from typing import Annotated, Any, TypeAlias

import msgspec
import typer

from busway.backoff import backoff_of, shown as text_of
from busway.cli.common import completion, field_flags, flags, terminal, values
from busway.cli.common.connect import Link, linked
from busway.cli.common.tables import ordered, pairs, rows
from busway.streams import ChannelInfo

Stream: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="Name of the stream.",
        show_default=False,
        parser=values.stream_name,
        autocompletion=completion.streams,
        metavar="STREAM",
    ),
]
AnyStream: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        help="Name of the stream.",
        show_default="all",
        parser=values.stream_name,
        autocompletion=completion.streams,
        metavar="STREAM",
    ),
]
Channel: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="Name of the channel.",
        show_default=False,
        parser=values.channel_name,
        autocompletion=completion.channels,
        metavar="CHANNEL",
    ),
]
Target: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="first, new, an offset, a position, a time (2026-01-31T12:00), or a duration back (1h).",
        show_default=False,
    ),
]
Start: TypeAlias = Annotated[
    str,
    typer.Option(
        "--start",
        help="Where the channel begins: first, new, an offset, a time, or a duration back.",
        metavar="POSITION",
    ),
]
Lease: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--lease",
        help="Time after which an unacknowledged message is redelivered (30s, 5m); none: only when its consumer is gone.",
        metavar="TIME",
        show_default=False,
    ),
]
MaxDeliveries: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--max-deliveries",
        help="Number of deliveries after which a message becomes a dead letter; none: unlimited.",
        metavar="N",
        show_default=False,
    ),
]
DeadLetter: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--dead-letter",
        help="Topic of dead letters; {stream} and {channel} are filled in; none: no dead letters.",
        metavar="TOPIC",
        show_default=False,
    ),
]
BackoffText: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--backoff",
        help="Delays before a failed message is redelivered (1s,5s,30s; the last one repeats), or "
        "first=1s,factor=2,limit=10m,jitter=0.1; none: no delay.",
        metavar="TIMES",
        show_default=False,
    ),
]
OrderBy: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--order-by",
        help="Deliver messages with the same topic (topic), or the same value of a field, one after the other; none: no order.",
        metavar="FIELD",
        show_default=False,
    ),
]
Exclusive: TypeAlias = Annotated[
    bool | None, typer.Option("--exclusive/--shared", help="Allow one consumer at a time, or many.", show_default=False)
]
DeleteOnLeave: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--delete-on-leave/--keep", help="Remove the channel with its last consumer, or keep it.", show_default=False
    ),
]
Paused: TypeAlias = Annotated[
    bool | None, typer.Option("--paused/--running", help="Pause delivery, or resume it.", show_default=False)
]

_FIRST = (
    *("name", "stream", "lag", "in_flight", "waiting", "consumers", "dead", "redelivered", "lost"),
    *("lease", "max_deliveries", "backoff", "dead_letter"),
)
"""The figures of a channel that are shown first."""
RARE = ("waiting", "redelivered", "dead", "lost")
"""Columns of a list of channels that are left out if they are zero in all rows."""
SPARE = ("floor", "redelivered", "topic")
"""Columns that are left out on a narrow screen."""


@linked
def channel_list(link: Link, stream: AnyStream = None, json: flags.Json = False) -> None:
    """List the channels of a stream or of all streams, with their lag.

    busway channel list
    busway channel list orders
    """

    async def show() -> None:
        async with link.connect(reconnect=False) as bus:
            names = [info.name for info in await bus.streams()] if stream is None else [stream]
            found = [info for name in names for info in await bus.channels(name)]
        if json:
            for info in found:
                terminal.record(info)
        elif found:
            terminal.out.print(rows("", [row(msgspec.to_builtins(info)) for info in found], optional=RARE, spare=SPARE))
        else:
            terminal.note("no stream has a channel" if stream is None else f"the stream {stream!r} has no channel")
        if unreached := {node for info in found for node in info.unreached}:
            terminal.note(
                f"the figures of {', '.join(sorted(unreached))} are missing: these nodes can't be reached now"
            )

    terminal.run(show)


@linked
def channel_info(
    link: Link,
    stream: Stream,
    channel: Channel,
    everything: Annotated[bool, typer.Option("--all", help="Show figures that are zero or empty, too.")] = False,
    json: flags.Json = False,
) -> None:
    """Show the progress and the settings of a channel; in a cluster the totals and the figures of each node.

    busway channel info orders billing
    """

    async def show() -> None:
        async with link.connect(reconnect=False) as bus:
            found = await bus.channel_info(stream, channel)
        if json:
            terminal.record(found)
            return
        shown = msgspec.to_builtins(found)
        shown["backoff"] = text_of(found.backoff)
        parts = shown.pop("parts")
        terminal.out.print(pairs("", ordered(shown, _FIRST, everything=everything)))
        if parts:
            terminal.out.print(rows("parts", [_part(part) for part in parts]))

    terminal.run(show)


@linked
def channel_create(
    link: Link,
    stream: Stream,
    channel: Channel,
    start: Start = "first",
    lease: Lease = None,
    max_deliveries: MaxDeliveries = None,
    backoff: BackoffText = None,
    order_by: OrderBy = None,
    dead_letter: DeadLetter = None,
    topic: flags.Pattern = None,
    where: flags.Where = None,
    exclusive: Exclusive = None,
    delete_on_leave: DeleteOnLeave = None,
    paused: Paused = None,
    json: flags.Json = False,
) -> None:
    """Create a channel. An existing channel keeps its position and gets the given settings.

    busway channel create orders billing --start new --lease 5m --max-deliveries 3
    """
    settings = _settings(
        lease, max_deliveries, backoff, order_by, dead_letter, topic, where, exclusive, delete_on_leave, paused
    )
    begin = flags.checked(lambda: start_position(start))

    async def create() -> None:
        async with link.connect(reconnect=False) as bus:
            _print(await bus.create_channel(stream, channel, start=begin, **settings), json=json)

    terminal.run(create)


@linked
def channel_update(
    link: Link,
    stream: Stream,
    channel: Channel,
    lease: Lease = None,
    max_deliveries: MaxDeliveries = None,
    backoff: BackoffText = None,
    order_by: OrderBy = None,
    dead_letter: DeadLetter = None,
    topic: flags.Pattern = None,
    where: flags.Where = None,
    exclusive: Exclusive = None,
    delete_on_leave: DeleteOnLeave = None,
    paused: Paused = None,
    json: flags.Json = False,
) -> None:
    """Change settings of a channel; the others stay as they are.

    busway channel update orders billing --lease 1m
    """
    settings = _settings(
        lease, max_deliveries, backoff, order_by, dead_letter, topic, where, exclusive, delete_on_leave, paused
    )
    if not settings:
        raise typer.BadParameter("nothing to change: give --lease, --topic or another setting")

    async def update() -> None:
        async with link.connect(reconnect=False) as bus:
            _print(await bus.update_channel(stream, channel, **settings), json=json)

    terminal.run(update)


@linked
def channel_seek(link: Link, stream: Stream, channel: Channel, to: Target, json: flags.Json = False) -> None:
    """Move a channel to another position, from which it delivers all messages, acknowledged or not.

    In a cluster this applies to all nodes; an offset applies to this node, a position to the node that it names.

    busway channel seek orders billing 1h
    """
    begin = flags.checked(lambda: start_position(to))

    async def seek() -> None:
        async with link.connect(reconnect=False) as bus:
            offset = await bus.seek_channel(stream, channel, begin)
        if json:
            terminal.record({"stream": stream, "channel": channel, "offset": offset})

    terminal.run(seek)


@linked
def channel_pause(link: Link, stream: Stream, channel: Channel, json: flags.Json = False) -> None:
    """Stop delivery until the channel is resumed.

    busway channel pause orders billing
    """
    _pause(link, stream, channel, paused=True, json=json)


@linked
def channel_resume(link: Link, stream: Stream, channel: Channel, json: flags.Json = False) -> None:
    """Resume delivery.

    busway channel resume orders billing
    """
    _pause(link, stream, channel, paused=False, json=json)


@linked
def channel_remove(link: Link, stream: Stream, channel: Channel, json: flags.Json = False) -> None:
    """Remove a channel. The messages stay in the stream; its consumers get an error.

    busway channel remove orders billing
    """

    async def remove() -> None:
        async with link.connect(reconnect=False) as bus:
            _print(await bus.remove_channel(stream, channel), json=json)

    terminal.run(remove)


def _pause(link: Link, stream: str, channel: str, *, paused: bool, json: bool) -> None:
    async def update() -> None:
        async with link.connect(reconnect=False) as bus:
            _print(await bus.update_channel(stream, channel, paused=paused), json=json)

    terminal.run(update)


def start_position(text: str) -> Any:
    """Parse the position at which a channel begins."""
    text = text.strip()
    if text in {"first", "new"}:
        return text
    if text == "all":
        return "first"
    return values.stream_position(text)


def _settings(
    lease: str | None,
    max_deliveries: str | None,
    backoff: str | None,
    order_by: str | None,
    dead_letter: str | None,
    topic: str | None,
    where: list[str] | None,
    exclusive: bool | None,
    delete_on_leave: bool | None,
    paused: bool | None,
) -> dict[str, Any]:
    """Return the settings that are given as flags."""

    def read() -> dict[str, Any]:
        given = {
            "lease": None if lease is None else 0 if lease == "none" else values.duration(lease),
            "max_deliveries": None
            if max_deliveries is None
            else 0
            if max_deliveries == "none"
            else values.count(max_deliveries),
            "backoff": None if backoff is None else backoff_of(backoff),
            "order_by": "" if order_by == "none" else order_by,
            "dead_letter": dead_letter and ("" if dead_letter == "none" else values.topic_template(dead_letter)),
            "topic": topic,
            "where": field_flags.rules(where),
            "exclusive": exclusive,
            "delete_on_leave": delete_on_leave,
            "paused": paused,
        }
        return {key: value for key, value in given.items() if value is not None}

    return flags.checked(read)


def _print(info: ChannelInfo, *, json: bool) -> None:
    if json:
        terminal.record(info)


def _part(figures: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the figures of a channel at one node."""
    names = ("lag", "in_flight", "waiting", "floor", "cursor", "consumers", "redelivered", "dead", "lost")
    shown = {name.replace("_", " "): figures[name] if figures[name] is not None else "" for name in names}
    return {"node": figures["node"], **shown, "not reached": figures["error"]}


def row(figures: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a list of channels."""
    return {
        "channel": figures["name"],
        "stream": figures["stream"],
        "topic": figures["topic"],
        "lag": figures["lag"],
        "in flight": figures["in_flight"],
        "waiting": figures["waiting"],
        "floor": figures["floor"],
        "consumers": figures["consumers"],
        "redelivered": figures["redelivered"],
        "dead": figures["dead"],
        "lost": figures["lost"],
        "paused": "paused" if figures["paused"] else "",
    }
