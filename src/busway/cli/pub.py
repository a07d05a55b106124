"""`busway pub`: publish a payload, repeat it, or publish lines as they come."""

from typing import Annotated

import typer

from busway.cli import address, flags, terminal
from busway.cli.body import Source
from busway.cli.link import Link, linked


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
    json: flags.Json = False,
) -> None:
    """Publish a message to everybody whose subscription matches.

    busway pub price/eth/eur 3012.5 -f venue=krk
    tail -f app.log | busway pub --lines log/app
    busway pub load/test x --count 1m --rate 50000
    """
    fields = address.fields(field)
    source = Source(body, file, lines, count, rate, seconds).checked()

    async def publish() -> None:
        async with link.connect(reconnect=False) as bus:
            sent = 0
            async for run in source.runs():
                # The first one always waits for its answer: a topic that the broker refuses is told before more follow.
                answered = len(run) if confirm else int(sent == 0)
                for payload in run[:answered]:
                    receivers = await bus.publish(topic, payload, fields=fields, confirm=True)
                    if confirm and json:
                        terminal.record({"topic": topic, "receivers": receivers})
                    elif confirm:
                        terminal.data(b"%d\n" % receivers)
                await bus.publish_many(topic, run[answered:], fields=fields)
                sent += len(run)
            await bus.flush(timeout=None)  # as long as a slow consumer takes
            if json and not confirm:
                terminal.record({"topic": topic, "messages": sent})

    terminal.run(publish)
