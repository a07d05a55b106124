"""`busway req`: sends a request and prints the reply of one or all services. Called by busway.cli.app."""

from typing import Annotated, Any

import typer

import busway
from busway.cli.common import field_flags, flags, terminal, values
from busway.cli.common.connect import Link, linked
from busway.cli.common.payload import Source
from busway.gateway.message_json import as_object
from busway.message import Message


@linked
def req(
    link: Link,
    topic: flags.Topic,
    body: flags.Body = None,
    file: flags.File = None,
    field: flags.Field = None,
    every_service: Annotated[
        bool,
        typer.Option(
            "--all", "-a", help="Print the replies of all services of the topic as they arrive, with their names."
        ),
    ] = False,
    timeout: flags.Timeout = 5.0,
    each: Annotated[
        float | None,
        typer.Option(
            "--each",
            help="Time for one of several services to answer before the next one is tried.",
            parser=values.duration,
            metavar="TIME",
            show_default="the broker's",
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", "-r", help="Print the bytes of the reply only, without a newline.")
    ] = False,
    scope: flags.Reach = "global",
    json: flags.Json = False,
) -> None:
    """Send a request and print the reply. Exit code 4: no service; 3: no reply in time.

    busway req sum '[1, 2]' --timeout 2s
    busway req status --all
    """
    if raw and json:
        raise typer.BadParameter("--raw and --json exclude each other")
    source = Source(body, file, lines=False).checked()
    more: dict[str, Any] = {"fields": field_flags.fields(field), "timeout": timeout, "each": each, "scope": scope}

    def show(reply: Message) -> None:
        if json:
            terminal.record(as_object(reply))
        else:
            name = f"{reply.sender}: ".encode() if every_service and not raw else b""
            terminal.data(reply.payload if raw else name + reply.payload.removesuffix(b"\n") + b"\n")

    async def ask() -> None:
        payload = await source.whole()
        async with link.connect(reconnect=False) as bus:
            if every_service:
                await gather(bus, payload)
            else:
                show(await bus.request(topic, payload, **more))

    async def gather(bus: busway.Bus, payload: bytes) -> None:
        replies = bus.request_many(topic, payload, **more)
        async for reply in replies:
            show(reply)
        for failed in replies.failed:
            if json:
                terminal.record({"topic": topic, "sender": failed.sender, "error": str(failed.error)})
            else:
                terminal.note(f"{failed.sender}: {failed.error}")
        if replies.failed:
            raise terminal.Ended(terminal.ERROR)

    terminal.run(ask, timed=True)
