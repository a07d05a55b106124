"""How verbs that go on print messages: as lines, JSON, bytes or a format, until enough were printed."""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

import busway
from busway.cli.common import field_flags, terminal, values
from busway.gateway.message_json import as_object
from busway.message import Message
from busway.topic import matches

Render: TypeAlias = Callable[[list[Message], int], bytes]
"""The bytes for some messages; how many were printed before."""


async def read(
    subscription: busway.Subscription, printer: "Printer", earlier: list[str], only: str | None = None
) -> None:
    """Print what comes, of the stream `only` if that is given.

    A message that an earlier pattern of the same call matches too is that one's to print.
    """
    async for batch in subscription.batches():
        if subscription.notify and any(one.kind == "notify" for one in batch):
            printer.handed_over(subscription.pattern)
            batch = [one for one in batch if one.kind != "notify"]  # noqa: PLW2901
        if earlier:
            batch = [one for one in batch if not any(_has(pattern, one.topic) for pattern in earlier)]  # noqa: PLW2901
        if only is not None:
            batch = [one for one in batch if one.stream == only]  # noqa: PLW2901
        await printer.print(batch)
    printer.done.set()  # the subscription has ended


def _has(pattern: str, topic: str) -> bool:
    """Whether a topic belongs to a pattern. With its slash in front, a topic that begins with `re:` is no expression."""
    return matches(pattern, f"/{topic}")


class Printer:
    """Prints batches until enough were printed."""

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
        async with self._writing:  # of several patterns one at a time
            await terminal.stream(self._render(batch, before))
        self._written += len(batch)
        if self._written == self._count:
            self.done.set()

    def handed_over(self, pattern: str) -> None:
        self._note(f"everything kept on {pattern} has been printed")

    def tell_missed(self, total: int) -> None:
        """At the end: how many messages were missed in all."""
        if total:
            self._note(
                f"missed {total} message{'s' * (total != 1)} in all: the output was read too slowly (see --policy)"
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
            layout.line(message, done + place) + "\n" for place, message in enumerate(batch, 1)
        ).encode("utf-8", "replace")
    before, after = ("\x1b[36m", "\x1b[0m") if terminal.out.is_terminal and not terminal.out.no_color else ("", "")
    return lambda batch, _: "".join(
        f"{before}{message.topic}{after} {_marks(message)}{values.readable(message.payload)}\n" for message in batch
    ).encode("utf-8", "replace")


def _marks(message: Message) -> str:
    """What is special about a message: its fields, and that it is none of the plain ones."""
    kind = f"<{message.kind}> " if message.kind != "publish" else ""
    return f"{kind}[{field_flags.shown(fields)}] " if (fields := message.fields) else kind
