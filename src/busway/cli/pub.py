"""`busway pub`: publish a payload, repeat it, or publish lines as they come."""

from functools import partial
from typing import Annotated, Any

import typer

from busway.cli import address, flags, terminal
from busway.cli.body import Source
from busway.cli.link import Link, linked
from busway.durations import seconds as read_seconds


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
        bool, typer.Option("--confirm", "-c", help="Print how many connections received each message.")
    ] = False,
    durable: Annotated[
        bool, typer.Option("--durable", "-d", help="Store each message in the stream of its topic; print its position.")
    ] = False,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires", help="With --durable: nobody gets it after this time.", metavar="TIME", show_default=False
        ),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(
            "--delay",
            help="With --durable: nobody gets it before this time is over.",
            metavar="TIME",
            show_default=False,
        ),
    ] = None,
    scope: flags.Reach = "global",
    json: flags.Json = False,
) -> None:
    """Publish a message to everybody whose subscription matches.

    busway pub price/eth/eur 3012.5 -f venue=krk
    tail -f app.log | busway pub --lines log/app
    busway pub load/test x --count 1m --rate 50000
    busway pub orders/eu '{"id": 7}' --durable --expires 7d
    """
    fields = address.fields(field)
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
        raise typer.BadParameter("a stored message is for everybody: --durable takes no --scope")

    async def store() -> None:
        async with link.connect(reconnect=True) as bus:  # what was not answered is sent again, and stored once
            async for run in source.runs():
                for position in await bus.publish_many(topic, run, fields=fields, durable=True, **times):
                    if json:
                        terminal.record({"topic": topic, "position": str(position), **position._asdict()})
                    else:
                        terminal.data(f"{position}\n".encode())

    async def publish() -> None:
        async with link.connect(reconnect=False) as bus:
            sent = 0
            async for run in source.runs():
                # The first one always waits for its answer: a topic that the broker refuses is told before more follow.
                answered = len(run) if confirm else int(sent == 0)
                for payload in run[:answered]:
                    receivers = await bus.publish(topic, payload, fields=fields, confirm=True, scope=scope)
                    if confirm and json:
                        terminal.record({"topic": topic, "receivers": receivers})
                    elif confirm:
                        terminal.data(b"%d\n" % receivers)
                await bus.publish_many(topic, run[answered:], fields=fields, scope=scope)
                sent += len(run)
            await bus.flush(timeout=None)  # as long as a slow consumer takes
            if json and not confirm:
                terminal.record({"topic": topic, "messages": sent})

    terminal.run(store if durable else publish)
