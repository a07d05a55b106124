"""`busway channel dead|redrive`: list dead letters and send them back to their channel. Called by busway.cli.app."""

import base64
from datetime import datetime
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import typer

from busway.cli.channels.channel import Channel, Stream
from busway.cli.common import flags, terminal, values
from busway.cli.common.connect import Link, linked
from busway.cli.common.tables import pairs, rows
from busway.client.channels.dead_letters import LAST
from busway.dead_letters import DeadLetter, Redrive


def _id(text: str) -> str:
    """Refuse an empty id: it is a prefix of every id."""
    if not text:
        raise ValueError("an id is empty: `busway channel dead` lists the ids")
    return text


Ids: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        help="Ids of dead letters, or unique beginnings of ids.", parser=_id, metavar="[IDS]...", show_default=False
    ),
]
Reason: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--reason",
        help="Only dead letters with this text in the reason or the exception type.",
        metavar="TEXT",
        show_default=False,
    ),
]
Since: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--since",
        help="Only dead letters of this duration up to now (1h, 7d).",
        parser=values.duration,
        metavar="TIME",
        show_default=False,
    ),
]
Last: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--last",
        help="Largest number of dead letters to list.",
        parser=values.count,
        metavar="N",
        show_default=str(LAST),
    ),
]
Redriven: TypeAlias = Annotated[bool, typer.Option("--redriven", help="List dead letters that were sent back, too.")]
All: TypeAlias = Annotated[bool, typer.Option("--all", help="Send all dead letters back.")]

_ID: Final = 16
_REASON: Final = 60


@linked
def channel_dead(
    link: Link,
    stream: Stream,
    channel: Channel,
    ids: Ids = None,
    last: Last = None,
    topic: flags.Pattern = None,
    reason: Reason = None,
    since: Since = None,
    redriven: Redriven = False,
    json: flags.Json = False,
) -> None:
    """List the dead letters of a channel, the newest last; with ids show these in full.

    busway channel dead orders billing --reason timeout
    busway channel dead orders billing 3f2a9c
    """
    most = None if ids else last or LAST

    async def show() -> None:
        async with link.connect(reconnect=False) as bus:
            chosen: dict[str, Any] = {"topic": topic or "**", "reason": reason, "since": _back(since)}
            found = await bus.dead_letters(stream, channel, last=most, redriven=redriven or bool(ids), **chosen)
            unreached = (await bus.channel_info(stream, channel)).unreached
        if ids:
            found = [letter for letter in found if letter.id.startswith(tuple(ids))]
            if missing := [text for text in ids if not any(letter.id.startswith(text) for letter in found)]:
                raise terminal.Ended(
                    terminal.ERROR,
                    f"busway: no dead letter has the id {missing[0]}: `busway channel dead {stream} {channel}` lists the ids",
                )
        if json:
            for letter in found:
                terminal.record(_record(letter))
        elif ids:
            for letter in found:
                terminal.out.print(pairs("", _whole(letter)))
        elif found:
            terminal.out.print(rows("", [_row(letter) for letter in found]))
            if len(found) == most:
                terminal.note(f"the last {most}; --last N shows more")
        elif topic is not None or reason is not None or since is not None:
            terminal.note(f"the channel {stream}/{channel} has no such dead letter")
        else:
            terminal.note(f"the channel {stream}/{channel} has no dead letters")
        if unreached:
            terminal.note(f"the dead letters of {', '.join(unreached)} are missing: these nodes can't be reached now")

    terminal.run(show)


@linked
def channel_redrive(
    link: Link,
    stream: Stream,
    channel: Channel,
    ids: Ids = None,
    everything: All = False,
    topic: flags.Pattern = None,
    reason: Reason = None,
    since: Since = None,
    json: flags.Json = False,
) -> None:
    """Send dead letters back to their channel, each once: all, some by their ids, or all that match.

    The channel delivers the messages as if for the first time. The command may be interrupted and repeated.

    busway channel redrive orders billing --all
    busway channel redrive orders billing --reason timeout --since 1d
    """
    matching = topic is not None or reason is not None or since is not None
    if sum((bool(ids), everything, matching)) != 1:
        raise typer.BadParameter(
            "the dead letters are missing or ambiguous: give --all, their ids, or filters (--topic, --reason, --since)"
        )

    async def redrive() -> None:
        with terminal.notes.status("") as status:

            def progress(done: Redrive) -> None:
                status.update(f"{done.done:,} dead letters, {done.redriven:,} sent back")

            if not terminal.notes.is_terminal:
                status.stop()
            async with link.connect(reconnect=False) as bus:
                result = await bus.redrive_channel(
                    stream,
                    channel,
                    ids,
                    topic=topic or "**",
                    reason=reason,
                    since=_back(since),
                    progress=progress if terminal.notes.is_terminal else None,
                )
        if json:
            terminal.record(result)
        else:
            before = f"; {result.before:,} had been sent back before" if result.before else ""
            what = "1 dead letter was" if result.redriven == 1 else f"{result.redriven:,} dead letters were"
            terminal.note(f"{what} sent back to {stream}/{channel}{before}")
        if result.gone:
            terminal.note(
                f"{result.gone:,} can't be sent back, because the stream has removed their messages or the messages have expired; "
                "`busway channel dead --json` prints their payloads"
            )
        if result.unreached:
            terminal.note(
                f"the dead letters of {', '.join(result.unreached)} are missing: these nodes can't be reached now"
            )
        if result.left:
            reasons = "their node could not be reached, or is still storing them"
            raise terminal.Ended(terminal.ERROR, f"busway: {result.left:,} were not sent back: {reasons}; retry later")

    terminal.run(redrive)


def _back(since: float | None) -> str | None:
    return None if since is None else f"{since:f}s"


def _record(letter: DeadLetter) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.structs.asdict(letter)
    try:
        return found | {"payload": letter.payload.decode()}
    except UnicodeDecodeError:
        del found["payload"]
        return found | {"payload_base64": base64.b64encode(letter.payload).decode()}


def _row(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id[:_ID],
        "died": _moment(letter.died),
        "topic": letter.topic,
        "deliveries": letter.deliveries,
        "reason": _cut(f"{letter.error}: {letter.reason}" if letter.error else letter.reason),
        "state": "redriven" if letter.redriven else "message gone" if letter.gone else "",
    }


def _whole(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "state": "redriven" if letter.redriven else "the message is gone" if letter.gone else "dead",
        "topic": letter.topic,
        "offset": letter.offset,
        "sender": letter.sender,
        "sent": _moment(letter.time),
        "died": _moment(letter.died),
        "deliveries": letter.deliveries,
        "first delivery": _moment(letter.first),
        "last delivery": _moment(letter.last),
        "reason": letter.reason,
        "exception": letter.error,
        "traceback": letter.traceback,
        "consumer": letter.consumer,
        "host": letter.host,
        "node": letter.node,
        **({"fields": letter.fields} if letter.fields else {}),
        "payload": letter.payload.decode(errors="backslashreplace"),
    }


def _moment(time: datetime | None) -> str:
    if time is None:
        return ""
    return time.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def _cut(text: str) -> str:
    return text if len(text) <= _REASON else text[: _REASON - 1] + "…"
