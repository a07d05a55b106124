"""`busway reply`: serves a topic with an echo, a text, or the output of a command. Called by busway.cli.app."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

import busway
from busway.cli.common import flags, terminal
from busway.cli.common.connect import Link, linked
from busway.cli.common.shell import Command
from busway.client.connection.events import EventStream
from busway.gateway.message_json import as_object
from busway.message import Message

Answer = Callable[[Message], Awaitable[bytes]]
"""Computes the reply to a request."""


@linked
def reply(
    link: Link,
    topic: flags.Topic,
    echo: Annotated[bool, typer.Option("--echo", "-e", help="Reply with the request's own payload.")] = False,
    body: Annotated[str | None, typer.Option("--body", "-b", help="Reply with this text.", metavar="TEXT")] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec",
            "-x",
            help="Run this shell command: payload on its stdin, topic in $BUSWAY_TOPIC, stdout is the reply.",
            metavar="CMD",
        ),
    ] = None,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared", "-s", help="Share the topic with other services; the broker chooses one for each request."
        ),
    ] = False,
    ask: Annotated[
        str | None,
        typer.Option(
            "--ask",
            help="With --shared: the broker asks this shell command first; exit status 0 accepts the request.",
            metavar="CMD",
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", help="Number of requests handled at a time.", min=1)
    ] = 16,
    scope: flags.Reach = "global",
    count: flags.Count = None,
    seconds: flags.For = None,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Answer the requests of a topic. Only one client may serve a topic, unless all of them use --shared.

    busway reply ping --body pong
    busway reply where --shared --ask 'grep -q "$(cat)" mine.txt' --body here
    busway reply upper --exec "tr a-z A-Z"
    """
    if sum((echo, body is not None, command is not None)) != 1:
        raise typer.BadParameter("the reply is missing or ambiguous: give one of --echo, --body and --exec")
    if ask is not None and not shared:
        raise typer.BadParameter("--ask needs --shared: the broker asks only shared services")
    commands = Command(command or "")
    asking = None if ask is None else _Ask(ask)
    answer = _echo if echo else _text(body) if body is not None else commands
    note = (lambda _text: None) if quiet else terminal.note

    async def answer_all() -> None:
        with terminal.Signals() as signals:
            async with link.connect(reconnect=True) as bus:
                work = _Work(answer, count, json=json)
                events = bus.events()
                async with bus.serve(
                    topic, work.handle, shared=shared, ask=asking, concurrency=concurrency, scope=scope
                ):
                    note(f"serving {topic} at {bus.url}; Ctrl-C ends")
                    async with asyncio.TaskGroup() as tasks:
                        refused = tasks.create_task(_refusal(events, topic))
                        await _first(seconds, work.done.wait(), signals.first.wait())
                        refused.cancel()
                    if signals.first.is_set():
                        commands.interrupt()
                        if asking is not None:
                            asking.interrupt()
        if signals.interrupted:
            raise terminal.Ended(terminal.INTERRUPTED)
        if not work.done.is_set() and count is not None and not signals.first.is_set():
            raise terminal.Ended(terminal.TIMEOUT, f"only {work.answered} of {count} requests arrived in time")

    terminal.run(answer_all)


class _Work:
    """Answers requests and counts them. `done` is set when `count` requests were answered."""

    def __init__(self, answer: Answer, count: int | None, *, json: bool) -> None:
        self.done = asyncio.Event()
        self.answered = 0
        self._answer = answer
        self._count = count
        self._json = json

    async def handle(self, message: Message) -> bytes:
        failed = ""
        try:
            return await self._answer(message)
        except busway.HandlerError as error:
            failed = error.reason
            raise
        finally:
            self.answered += 1
            if self._json:
                terminal.record(as_object(message) | ({"error": failed} if failed else {}))
            if self.answered == self._count:
                self.done.set()


async def _refusal(events: EventStream, topic: str) -> None:
    """Raise the error that ended the service: the broker refused it after a reconnect, or the bus was closed."""
    async for event in events:
        ended = event.kind == "closed" or (event.kind == "rejected" and event.topic == topic)
        if ended and event.error is not None:
            raise event.error


async def _first(seconds: float | None, *waits: Awaitable[object]) -> None:
    """Wait until the first of `waits` has finished, or the time is up."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _echo(message: Message) -> bytes:
    return message.payload


def _text(text: str) -> Answer:
    async def answer(_message: Message) -> bytes:
        return text.encode()

    return answer


class _Ask:
    """The --ask callback: accepts a request if its shell command ends with exit status 0."""

    def __init__(self, command: str) -> None:
        self._run = Command(command)
        self.interrupt = self._run.interrupt

    async def __call__(self, message: Message) -> bool:
        try:
            await self._run(message)
        except busway.HandlerError:
            return False
        return True
