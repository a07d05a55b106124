"""`busway pub` and `busway push`: send a payload, a repeated payload, or lines. Called by busway.cli.app."""

from functools import partial
from typing import Annotated, Any, Final

import typer

from busway.cli.common import advice, field_flags, flags, terminal, values
from busway.cli.common.connect import Link, linked
from busway.cli.common.payload import Source
from busway.common.durations import seconds as read_seconds

_MEMORY: Final = "stream {!r} is in memory: its messages are lost when the broker stops; 'busway serve --data DIR' stores streams on disk"


@linked
def pub(
    link: Link,
    topic: flags.Topic,
    body: flags.Body = None,
    file: flags.File = None,
    field: flags.Field = None,
    lines: flags.Lines = False,
    count: flags.Repeat = None,
    rate: flags.Rate = None,
    seconds: flags.For = None,
    confirm: Annotated[
        bool, typer.Option("--confirm", "-c", help="Print for each message how many connections received it.")
    ] = False,
    durable: Annotated[
        bool, typer.Option("--durable", "-d", help="Store each message in the stream of its topic; print its position.")
    ] = False,
    expires: Annotated[
        float | None,
        typer.Option(
            "--expires",
            help="With --durable: the message is not delivered after this time.",
            parser=values.duration,
            metavar="TIME",
            show_default=False,
        ),
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option(
            "--delay",
            help="With --durable: the message is delivered only after this time.",
            parser=values.duration,
            metavar="TIME",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            "-t",
            help="With --durable: time to wait until a message is stored.",
            parser=values.duration,
            metavar="TIME",
            show_default="unlimited",
        ),
    ] = None,
    scope: flags.Reach = "global",
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Publish a message to all matching subscriptions.

    busway pub price/eth/eur 3012.5 -f venue=krk
    tail -f app.log | busway pub --lines log/app
    busway pub load/test x --count 1m --rate 50000
    busway pub orders/eu '{"id": 7}' --durable --expires 7d
    """
    advice.print_hints(terminal.note, topic)
    fields = field_flags.fields(field)
    source = Source(body, file, lines, count, rate, seconds).checked()
    times: dict[str, Any] = {}
    for name, time in (("expires", expires), ("delay", delay)):
        if time is not None:
            times[name] = flags.checked(partial(read_seconds, f"--{name}", time))
    if (times or timeout is not None) and not durable:
        raise typer.BadParameter("--expires, --delay and --timeout are for stored messages: give --durable, too")
    times["timeout"] = timeout
    if durable and confirm:
        raise typer.BadParameter("--durable and --confirm exclude each other: leave --confirm out")
    if durable and scope != "global":
        raise typer.BadParameter(
            "--durable and --scope exclude each other: leave --scope out, because a stored message reaches the whole cluster"
        )

    # The bar must not share the screen with positions and counts.
    prints = (durable or confirm) and terminal.out.is_terminal
    bar = source.progress(shown=not (json or quiet or prints))

    async def store() -> None:
        reported: set[str] = set()
        async with link.connect(reconnect=True) as bus:  # unanswered messages are resent and stored once
            with bar:
                async for run in source.runs():
                    for position in await bus.publish_many(topic, run, fields=fields, durable=True, **times):
                        if json:
                            found = {"topic": topic, "position": str(position), **position._asdict()}
                            terminal.record(found | {"safety": position.safety})
                            continue
                        terminal.data(f"{position}\n".encode())
                        if position.safety == "memory" and position.stream not in reported and not quiet:
                            reported.add(position.stream)
                            terminal.note(_MEMORY.format(position.stream))
                    bar.add(len(run))

    async def publish() -> None:
        async with link.connect(reconnect=False) as bus:
            with bar:
                async for run in source.runs():
                    # The first message always waits for its answer: a refused topic is reported before more follow.
                    answered = len(run) if confirm else int(bar.sent == 0)
                    for payload in run[:answered]:
                        receivers = await bus.publish(topic, payload, fields=fields, confirm=True, scope=scope)
                        if confirm and json:
                            terminal.record({"topic": topic, "receivers": receivers})
                        elif confirm:
                            terminal.data(b"%d\n" % receivers)
                    await bus.publish_many(topic, run[answered:], fields=fields, scope=scope)
                    bar.add(len(run))
                await bus.flush(timeout=None)  # as long as a slow consumer takes
            if json and not confirm:
                terminal.record({"topic": topic, "messages": bar.sent})

    terminal.run(store if durable else publish, timed=durable)


@linked
def push(
    link: Link,
    topic: flags.Topic,
    body: flags.Body = None,
    file: flags.File = None,
    field: flags.Field = None,
    lines: flags.Lines = False,
    count: flags.Repeat = None,
    rate: flags.Rate = None,
    seconds: flags.For = None,
    timeout: flags.Timeout = 5.0,
    scope: flags.Reach = "global",
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Deliver a message to exactly one subscriber; without one the command fails (exit code 4).

    busway push jobs '{"resize": "cat.png"}'
    """
    fields = field_flags.fields(field)
    source = Source(body, file, lines, count, rate, seconds).checked()

    bar = source.progress(shown=not (json or quiet))

    async def push_all() -> None:
        async with link.connect(reconnect=False) as bus:
            try:
                with bar:
                    async for run in source.runs():
                        for payload in run:
                            await bus.push(topic, payload, fields=fields, timeout=timeout, scope=scope)
                            bar.add(1)
            finally:
                if json:
                    terminal.record({"topic": topic, "taken": bar.sent})

    terminal.run(push_all, timed=True)
