"""`busway take`: takes, prints and acknowledges messages of a channel, or runs a command. Called by busway.cli.app."""

import asyncio
from collections.abc import Callable
from typing import Annotated

import typer

import busway
from busway.cli.channels.channel import Channel, Stream
from busway.cli.common import flags, terminal, values
from busway.cli.common.connect import Link, linked
from busway.cli.common.output import Printer, renderer
from busway.cli.common.shell import Command
from busway.client.channels.acks import AckOutcome
from busway.message import Message

_BATCH = 256
_GRACE = 5.0


@linked
def take(
    link: Link,
    stream: Stream,
    channel: Channel,
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            "-n",
            help="Take at most this many messages; with --follow, end after this many.",
            parser=values.count,
            metavar="N",
            show_default="1; with --follow unlimited",
        ),
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Wait until all messages of --count have arrived.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Continue with messages as they arrive.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            "-t",
            help="Time to wait for a message.",
            parser=values.duration,
            metavar="TIME",
            show_default="5s; with --follow unlimited",
        ),
    ] = None,
    ack: Annotated[
        bool,
        typer.Option(
            "--ack/--no-ack",
            " /--peek",
            help="Acknowledge printed messages, or only look: leave them to the next consumer without counting a delivery.",
        ),
    ] = True,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec",
            "-x",
            help="Run this shell command for each: payload on its stdin, topic in $BUSWAY_TOPIC. "
            "Exit status 0 acknowledges the message, any other has it redelivered.",
            metavar="CMD",
        ),
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Create the channel if it does not exist.")] = False,
    raw: flags.Raw = False,
    json: flags.Json = False,
    format: Annotated[  # noqa: A002 - the flag's name
        str | None, typer.Option("--format", help="Format of a line, as in busway sub; also {deliveries}.")
    ] = None,
    quiet: flags.Quiet = False,
) -> None:
    """Take messages from a channel, print them and acknowledge them.

    Exit code 3: no message in time; 1: the command of --exec failed for some messages (with --follow only a note
    reports them).

    busway take orders billing -n 10 --json
    busway take orders billing --follow --exec ./bill.sh
    """
    if sum((raw, json, format is not None)) > 1:
        raise typer.BadParameter("--raw, --json and --format exclude each other")
    if command is not None and not ack:
        raise typer.BadParameter(
            "--exec and --peek (--no-ack) exclude each other: the exit status of the command decides; leave --peek out"
        )
    render = flags.checked(lambda: renderer(raw=raw, json=json, format=format))
    note = (lambda _text: None) if quiet else terminal.note
    total = count if follow or count is not None else 1
    patience = timeout if timeout is not None or follow else 5.0
    worker = _Worker(None if command is None else Command(command), Printer(render, None, note), note, ack=ack)

    async def run() -> None:
        with terminal.Signals() as signals:
            async with link.connect(reconnect=follow) as bus:
                async with bus.channel(stream, channel, window=0, create=create, max_processing=None) as source:
                    if follow:
                        note(f"taking from {stream}/{channel} at {bus.url}; Ctrl-C ends")
                    try:
                        async with asyncio.TaskGroup() as tasks:
                            working = tasks.create_task(
                                worker.follow(source, total, patience)
                                if follow
                                else worker.once(source, total or 1, patience, whole=whole)
                            )
                            stopped = asyncio.ensure_future(signals.first.wait())
                            await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
                            stopped.cancel()
                            if not working.done():
                                await worker.interrupt(working)
                    finally:
                        source.put_back(worker.unprocessed)  # these deliveries do not count
                if source.lost:
                    note(f"the stream removed {source.lost} messages before they were taken")
        if signals.interrupted:
            raise terminal.Ended(terminal.INTERRUPTED)

    terminal.run(run, timed=True)


class _Worker:
    """Takes messages of a channel, prints them or runs the command for them, and acknowledges them."""

    def __init__(self, command: Command | None, printer: Printer, note: Callable[[str], None], *, ack: bool) -> None:
        self._command = command
        self._printer = printer
        self._note = note
        self._ack = ack
        self._stopping = False
        self._failed = 0
        """Number of messages for which the command failed."""
        self.unprocessed: list[Message] = []
        """Messages that were neither acknowledged nor passed to the command."""

    async def once(self, channel: busway.Channel, count: int, timeout: float | None, *, whole: bool) -> None:
        batch = await channel.take(count, timeout, whole=whole)
        await self._process(channel, batch)
        if self._failed:
            raise terminal.Ended(
                terminal.ERROR,
                f"the command failed for {self._failed} of {len(batch)} messages: they will be redelivered",
            )
        if whole and len(batch) < count:
            raise terminal.Ended(terminal.TIMEOUT, f"only {len(batch)} of {count} messages arrived in time")

    async def follow(self, channel: busway.Channel, count: int | None, timeout: float | None) -> None:
        taken = 0
        while not self._stopping and (count is None or taken < count):
            most = 1 if self._command is not None else _BATCH if count is None else min(count - taken, _BATCH)
            batch = await channel.take(most, timeout)
            await self._process(channel, batch)
            taken += len(batch)

    async def interrupt(self, working: "asyncio.Task[None]") -> None:
        """Cancel the work. A running command first gets SIGTERM and a few seconds to end."""
        self._stopping = True
        if self._command is not None and self._command.running:
            self._command.interrupt()
            await asyncio.wait((working,), timeout=_GRACE)
        working.cancel()

    async def _process(self, channel: busway.Channel, batch: list[Message]) -> None:
        if self._command is not None:
            for number, message in enumerate(batch):
                if self._stopping:
                    self.unprocessed += batch[number:]
                    break
                await self._run(self._command, channel, message)
            return
        if not self._ack:
            self.unprocessed += batch
        await self._printer.print(batch)
        if self._ack:
            await self._wait_for_ack(channel.ack(batch))

    async def _run(self, command: Command, channel: busway.Channel, message: Message) -> None:
        try:
            output = await command(message)
        except busway.HandlerError as error:
            self._failed += 1
            self._note(f"offset {message.offset}: the command failed ({error.reason}); the message will be redelivered")
            await self._wait_for_ack(channel.nack(message, reason=f"the command failed: {error.reason}"))
        else:
            await terminal.stream(output)
            await self._wait_for_ack(channel.ack(message))

    async def _wait_for_ack(self, answer: AckOutcome) -> None:
        try:
            await answer
        except (busway.AckLate, busway.Disconnected) as error:
            self._note(f"a message was not acknowledged and will be redelivered: {error}")
