"""`busway post`, `pin`, `unpin` and `kept`: publish, remove and list retained messages. Called by busway.cli.app."""

import asyncio
from typing import Annotated

import typer

from busway.cli.common import completion, field_flags, flags, terminal, values
from busway.cli.common.connect import Link, linked
from busway.cli.common.payload import Source
from busway.gateway.message_json import as_object


@linked
def post(
    link: Link,
    topic: flags.Topic,
    body: flags.Body = None,
    file: flags.File = None,
    field: flags.Field = None,
    seconds: flags.For = None,
    quiet: flags.Quiet = False,
) -> None:
    """Publish a message that new subscribers also get as long as this command runs.

    busway post proc/hdb up -f host=a1
    """
    fields = field_flags.fields(field)
    source = Source(body, file, lines=False).checked()
    note = (lambda _text: None) if quiet else terminal.note

    async def post_until_end() -> None:
        payload = await source.whole()
        with terminal.Signals() as signals:
            async with link.connect(reconnect=True) as bus:
                await bus.post(topic, payload, fields=fields)
                note(f"posted on {topic} at {bus.url}; Ctrl-C withdraws it")
                try:
                    async with asyncio.timeout(seconds):
                        await signals.first.wait()
                except TimeoutError:
                    pass  # the time of --for is over
        if signals.interrupted:
            raise terminal.Ended(terminal.INTERRUPTED)

    terminal.run(post_until_end)


@linked
def pin(
    link: Link,
    topic: flags.Topic,
    body: flags.Body = None,
    file: flags.File = None,
    field: flags.Field = None,
    json: flags.Json = False,
) -> None:
    """Pin a message for new subscribers until it is unpinned. It replaces a pin of the same --name, topic and fields.

    busway pin config/hdb '{"threads": 4}' --name manager
    """
    fields = field_flags.fields(field)
    source = Source(body, file, lines=False).checked()

    async def publish() -> None:
        payload = await source.whole()
        async with link.connect(reconnect=False) as bus:
            await bus.pin(topic, payload, fields=fields)
            if json:
                terminal.record({"topic": topic, "pinned": True})

    terminal.run(publish)


@linked
def unpin(link: Link, topic: flags.Topic, field: flags.Field = None, json: flags.Json = False) -> None:
    """Remove the pin with this --name, topic and fields; exit code 1 if there is none.

    busway unpin config/hdb --name manager
    """
    fields = field_flags.fields(field)

    async def remove() -> None:
        async with link.connect(reconnect=False) as bus:
            removed = await bus.unpin(topic, fields=fields)
        if json:
            terminal.record({"topic": topic, "removed": removed})
        if not removed:
            raise terminal.Ended(
                terminal.ERROR,
                f"no pin on {topic} has this --name and these fields: `busway kept {topic}` lists the pins",
            )

    terminal.run(remove)


@linked
def kept(
    link: Link,
    pattern: Annotated[
        str,
        typer.Argument(
            help="Topics to list.", parser=values.pattern, autocompletion=completion.topics, metavar="PATTERN"
        ),
    ] = "**",
    where: flags.Where = None,
    json: flags.Json = False,
) -> None:
    """List the retained messages: posts and pins.

    busway kept 'config/**'
    """
    rules = field_flags.rules(where)

    async def show() -> None:
        async with link.connect(reconnect=False) as bus:
            for message in await bus.kept(pattern, where=rules):
                if json:
                    terminal.record(as_object(message))
                    continue
                fields = f" [{field_flags.shown(message.fields)}]" if message.fields else ""
                sender = message.sender or message.id[:16]
                line = f"{message.kind:<4} {message.topic}{fields} by {sender}: {values.readable(message.payload)}"
                # Control characters of other clients must not break the line.
                terminal.data(f"{values.one_line(line)}\n".encode("utf-8", "replace"))

    terminal.run(show)
