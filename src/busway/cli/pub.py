"""`busway pub`: publish a payload, repeat it, or publish lines as they come."""

from functools import partial
from typing import Annotated, Any, Final

import typer

from busway.cli.common import advice, field_flags, flags, terminal
from busway.cli.common.connect import Link, linked
from busway.cli.common.payload import Source
from busway.common.durations import seconds as read_seconds

_MEMORY: Final = (
    "stream {!r} is in memory: its messages end with the broker; 'busway serve --data DIR' stores streams on disk"
)


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
        str | None,
        typer.Option(
            "--expires",
            help="With --durable: the message is not delivered after this time.",
            metavar="TIME",
            show_default=False,
        ),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(
            "--delay",
            help="With --durable: the message is delivered only after this time.",
            metavar="TIME",
            show_default=False,
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
    advice.tell(terminal.note, topic)
    fields = field_flags.fields(field)
    source = Source(body, file, lines, count, rate, seconds).checked()
    times: dict[str, Any] = {}
    for name, text in (("expires", expires), ("delay", delay)):
        if text is not None:
            times[name] = flags.checked(partial(read_seconds, name, text))
    if times and not durable:
        raise typer.BadParameter("--expires and --delay are for stored messages: give --durable too")
    if durable and confirm:
        raise typer.BadParameter("--durable prints positions; leave --confirm out")
    if durable and scope != "global":
        raise typer.BadParameter("--durable takes no --scope: a stored message reaches the whole cluster")

    # The bar must not share the screen with positions and counts.
    prints = (durable or confirm) and terminal.out.is_terminal
    bar = source.progress(shown=not (json or quiet or prints))

    async def store() -> None:
        told: set[str] = set()
        async with link.connect(reconnect=True) as bus:  # unanswered messages are sent again, and stored once
            with bar:
                async for run in source.runs():
                    for position in await bus.publish_many(topic, run, fields=fields, durable=True, **times):
                        if json:
                            found = {"topic": topic, "position": str(position), **position._asdict()}
                            terminal.record(found | {"safety": position.safety})
                            continue
                        terminal.data(f"{position}\n".encode())
                        if position.safety == "memory" and position.stream not in told and not quiet:
                            told.add(position.stream)
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

    terminal.run(store if durable else publish)


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

    async def hand_over() -> None:
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

    terminal.run(hand_over, timed=True)
