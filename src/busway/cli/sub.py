"""`busway sub`: print what is published on topics, until interrupted, counted out or timed out."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Annotated

import typer

import busway
from busway.cli import address, flags, terminal, values
from busway.cli.link import Link, linked, watch
from busway.message import Message
from busway.settings import Policy
from busway.topic import matches

Render = Callable[[list[Message], int], bytes]


@linked
def sub(
    link: Link,
    patterns: Annotated[
        list[str], typer.Argument(help="Topics or patterns: price/*/eur, log/**, re:.*eth.*", show_default=False)
    ],
    group: Annotated[
        str, typer.Option("--group", "-g", help="Share the messages with the group's other members.")
    ] = "",
    where: flags.Where = None,
    notify: Annotated[
        bool, typer.Option("--notify", help="Tell on stderr when everything kept has been printed.")
    ] = False,
    withdrawn: Annotated[
        bool, typer.Option("--watch", help="Print posts and pins that are kept no longer, too.")
    ] = False,
    listen: Annotated[
        bool, typer.Option("--listen", help="Copies of pushes and requests too, without taking them.")
    ] = False,
    count: flags.Count = None,
    seconds: flags.For = None,
    raw: Annotated[bool, typer.Option("--raw", "-r", help="Payload bytes and nothing else, no newlines.")] = False,
    json: flags.Json = False,
    format: Annotated[  # noqa: A002 - the flag's name
        str | None,
        typer.Option(
            "--format", help="{topic} {payload} {fields} {id} {time} {sender} {kind} {missed} {size} {number}"
        ),
    ] = None,
    policy: Annotated[
        Policy, typer.Option("--policy", help="What the broker does when this end is too slow.")
    ] = "block",
    no_echo: Annotated[bool, typer.Option("--no-echo", help="Not what this connection itself published.")] = False,
    quiet: flags.Quiet = False,
) -> None:
    """Print messages as they come; how many were missed is told on stderr.

    busway sub 'price/*/eur' --where venue=krk
    busway sub '**' --json --for 30s | jq .topic
    busway sub jobs --group workers --format '{time} {payload}'
    """
    if sum((raw, json, format is not None)) > 1:
        raise typer.BadParameter("--raw, --json and --format exclude each other")
    try:
        render = _renderer(raw=raw, json=json, format=format)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    rules = address.rules(where)
    note = (lambda _text: None) if quiet else terminal.note
    printer = _Printer(render, count, note)

    async def print_all() -> None:
        subscriptions: list[busway.Subscription] = []
        try:
            async with contextlib.AsyncExitStack() as stack:
                bus = await stack.enter_async_context(link.connect(reconnect=True))
                for pattern in patterns:
                    one = bus.subscribe(
                        pattern,
                        where=rules,
                        notify=notify,
                        watch=withdrawn,
                        listen=listen,
                        group=group,
                        policy=policy,
                        echo=not no_echo,
                    )
                    subscriptions.append(await stack.enter_async_context(one))
                note(f"subscribed to {' '.join(patterns)} at {bus.url}; Ctrl-C ends")
                try:
                    async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
                        watching = tasks.create_task(watch(bus, note))
                        reading = [
                            tasks.create_task(_read(one, printer, [] if group else patterns[:place]))
                            for place, one in enumerate(subscriptions)
                        ]
                        await printer.done.wait()
                        for task in (*reading, watching):
                            task.cancel()
                except TimeoutError:
                    if count is not None:
                        text = f"only {printer.printed} of {count} messages came in time"
                        raise terminal.Ended(terminal.TIMEOUT, text) from None
        finally:
            # Only now: what the broker says of dropped messages may stand behind those that nobody reads any more.
            printer.tell_missed(sum(one.missed for one in subscriptions))

    terminal.run(print_all)


async def _read(subscription: busway.Subscription, printer: "_Printer", earlier: list[str]) -> None:
    """A message that an earlier pattern of the same call matches too is that one's to print."""
    async for batch in subscription.batches():
        if subscription.notify and any(one.kind == "notify" for one in batch):
            printer.handed_over(subscription.pattern)
            batch = [one for one in batch if one.kind != "notify"]  # noqa: PLW2901
        if earlier:
            batch = [one for one in batch if not any(_has(pattern, one.topic) for pattern in earlier)]  # noqa: PLW2901
        await printer.print(batch)
    printer.done.set()  # the subscription has ended


def _has(pattern: str, topic: str) -> bool:
    """Whether a topic belongs to a pattern. With its slash in front, a topic that begins with `re:` is no expression."""
    return matches(pattern, f"/{topic}")


class _Printer:
    """Prints batches until enough were printed."""

    def __init__(self, render: Render, count: int | None, note: Callable[[str], None]) -> None:
        self.done = asyncio.Event()
        self.printed = 0
        self._written = 0
        self._writing = asyncio.Lock()
        self._render = render
        self._count = count
        self._note = note
        self._told = 0

    async def print(self, batch: list[Message]) -> None:
        if self._count is not None:
            batch = batch[: self._count - self.printed]
        if not batch:
            return
        before = self.printed
        self.printed += len(batch)
        missed = sum(message.missed for message in batch)
        if missed:
            self._told += missed
            self._note(f"missed {missed} message{'s' * (missed != 1)} before this point")
        async with self._writing:  # of several patterns one at a time
            await terminal.stream(self._render(batch, before))
        self._written += len(batch)
        if self._written == self._count:
            self.done.set()

    def handed_over(self, pattern: str) -> None:
        self._note(f"everything kept on {pattern} has been printed")

    def tell_missed(self, total: int) -> None:
        """What was missed after the last message that could have told it."""
        if total > self._told:
            self._note(f"missed {total - self._told} more messages")


def _renderer(*, raw: bool, json: bool, format: str | None) -> Render:  # noqa: A002
    if raw:
        return lambda batch, _: b"".join(message.payload for message in batch)
    if json:
        import msgspec

        encode = msgspec.json.encode
        return lambda batch, _: b"".join(encode(values.as_object(message)) + b"\n" for message in batch)
    if format is not None:
        layout = values.Format(format)
        return lambda batch, done: "".join(
            layout.line(message, done + place) + "\n" for place, message in enumerate(batch, 1)
        ).encode("utf-8", "replace")
    before, after = ("\x1b[36m", "\x1b[0m") if terminal.out.is_terminal and not terminal.out.no_color else ("", "")
    return lambda batch, _: "".join(
        f"{before}{message.topic}{after} {_marks(message)}{values.readable(message.payload)}\n" for message in batch
    ).encode("utf-8", "replace")


def _marks(message: Message) -> str:
    """What is special about a message: its fields, and that it is none of the plain ones."""
    kind = f"<{message.kind}> " if message.kind != "publish" else ""
    return f"{kind}[{address.shown(fields)}] " if (fields := message.fields) else kind
