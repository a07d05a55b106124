"""Output of messages by `sub`, `take` and `replay`: renders lines, JSON, bytes or a format, up to a count."""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

import busway
from busway.cli.common import field_flags, terminal, values
from busway.gateway.message_json import as_object
from busway.message import Message
from busway.topic import matches

Render: TypeAlias = Callable[[list[Message], int], bytes]
"""Renders messages as bytes. The second argument is the number of messages printed before."""


async def read(
    subscription: busway.Subscription, printer: "Printer", earlier: list[str], only: str | None = None
) -> None:
    """Print the messages of a subscription; with `only` those of that stream.

    Messages that match one of the `earlier` patterns are left out: the subscription of that pattern prints them.
    """
    async for batch in subscription.batches():
        if subscription.notify and any(message.kind == "notify" for message in batch):
            printer.retained_printed(subscription.pattern)
            batch = [message for message in batch if message.kind != "notify"]  # noqa: PLW2901
        if earlier:
            batch = [message for message in batch if not any(_has(pattern, message.topic) for pattern in earlier)]  # noqa: PLW2901
        if only is not None:
            batch = [message for message in batch if message.stream == only]  # noqa: PLW2901
        await printer.print(batch)
    printer.done.set()  # the subscription has ended


def _has(pattern: str, topic: str) -> bool:
    """Return True if the topic matches. The slash prevents that a topic such as `re:a` is read as an expression."""
    return matches(pattern, f"/{topic}")


class Printer:
    """Prints batches up to a count, and reports missed messages. `done` is set at the count or the end."""

    def __init__(self, render: Render, count: int | None, note: Callable[[str], None]) -> None:
        self.done = asyncio.Event()
        self.printed = 0
        self._written = 0
        self._writing = asyncio.Lock()
        self._render = render
        self._count = count
        self._note = note

    async def print(self, batch: list[Message]) -> None:
        if self._count is not None:
            batch = batch[: self._count - self.printed]
        if not batch:
            return
        before = self.printed
        self.printed += len(batch)
        missed = sum(message.missed for message in batch)
        if missed:
            self._note(f"missed {missed} message{'s' * (missed != 1)} before this point")
        async with self._writing:  # several subscriptions share the output
            await terminal.stream(self._render(batch, before))
        self._written += len(batch)
        if self._written == self._count:
            self.done.set()

    def retained_printed(self, pattern: str) -> None:
        """Report that all retained messages of a pattern were printed."""
        self._note(f"all retained messages of {pattern} have been printed")

    def report_missed(self, total: int) -> None:
        """Report at the end how many messages were missed in total."""
        if total:
            self._note(
                f"missed {total} message{'s' * (total != 1)} in total: the output was read too slowly (see --policy)"
            )


def renderer(*, raw: bool, json: bool, format: str | None) -> Render:  # noqa: A002
    if raw:
        return lambda batch, _: b"".join(message.payload for message in batch)
    if json:
        import msgspec

        encode = msgspec.json.encode
        return lambda batch, _: b"".join(encode(as_object(message)) + b"\n" for message in batch)
    if format is not None:
        layout = values.Format(format)
        return lambda batch, done: "".join(
            layout.line(message, done + index) + "\n" for index, message in enumerate(batch, 1)
        ).encode("utf-8", "replace")
    before, after = ("\x1b[36m", "\x1b[0m") if terminal.out.is_terminal and not terminal.out.no_color else ("", "")
    return lambda batch, _: "".join(
        f"{before}{message.topic}{after} {_marks(message)}{values.readable(message.payload)}\n" for message in batch
    ).encode("utf-8", "replace")


def _marks(message: Message) -> str:
    """Return the fields of a message, and its kind unless it is a plain publish, as text before the payload."""
    kind = f"<{message.kind}> " if message.kind != "publish" else ""
    return f"{kind}[{field_flags.shown(fields)}] " if (fields := message.fields) else kind
