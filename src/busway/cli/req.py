"""`busway req`: ask the service of a topic and print its reply."""

from typing import Annotated

import typer

from busway.cli import flags, terminal, values
from busway.cli.body import Source
from busway.cli.link import Link, linked


@linked
def req(
    link: Link,
    topic: flags.Topic,
    body: flags.Body = None,
    file: flags.File = None,
    timeout: flags.Timeout = 5.0,
    raw: Annotated[bool, typer.Option("--raw", "-r", help="The reply's bytes and nothing else, no newline.")] = False,
    json: flags.Json = False,
) -> None:
    """Send a request and print the reply; nobody serves = exit code 4, no reply in time = 3.

    busway req sum '[1, 2]' --timeout 2s
    """
    if raw and json:
        raise typer.BadParameter("--raw and --json exclude each other")
    source = Source(body, file, lines=False).checked()

    async def ask() -> None:
        payload = await source.whole()
        async with link.connect(reconnect=False) as bus:
            reply = await bus.request(topic, payload, timeout=timeout)
            if json:
                terminal.record(values.as_object(reply))
            else:
                terminal.data(reply.payload if raw else reply.payload.removesuffix(b"\n") + b"\n")

    terminal.run(ask, timed=True)
