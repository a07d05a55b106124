"""`busway sub`: prints the messages of topics until a signal, --count or --for ends it. Called by busway.cli.app."""

import asyncio
import contextlib
from typing import Annotated

import typer

import busway
from busway.cli.common import advice, completion, field_flags, flags, logs, terminal, values
from busway.cli.common.connect import Link, linked
from busway.cli.common.output import Printer, read, renderer
from busway.settings import Policy


@linked
def sub(
    link: Link,
    patterns: Annotated[
        list[str],
        typer.Argument(
            help="Topics or patterns: price/*/eur, log/**, re:.*eth.*",
            show_default=False,
            parser=values.pattern,
            autocompletion=completion.topics,
            metavar="PATTERN",
        ),
    ],
    group: Annotated[
        str, typer.Option("--group", "-g", help="Name of a group; each message goes to one of its members.")
    ] = "",
    where: flags.Where = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            help="Print stored messages first: all, from a duration back (1h), from a time (2026-01-31T12:00), or from a position.",
            metavar="POSITION",
            show_default=False,
        ),
    ] = None,
    notify: Annotated[
        bool, typer.Option("--notify", help="Report on stderr when all retained messages have been printed.")
    ] = False,
    withdrawn: Annotated[bool, typer.Option("--watch", help="Print posts and pins that are withdrawn, too.")] = False,
    listen: Annotated[
        bool, typer.Option("--listen", help="Print copies of pushes and requests, too, without taking them.")
    ] = False,
    count: flags.Count = None,
    seconds: flags.For = None,
    raw: flags.Raw = False,
    json: flags.Json = False,
    format: Annotated[  # noqa: A002 - the flag's name
        str | None,
        typer.Option(
            "--format",
            help="{topic} {payload} {fields} {id} {time} {sender} {kind} {missed} {size} {number} {position} {offset} {sequence}",
        ),
    ] = None,
    policy: Annotated[
        Policy | None,
        typer.Option(
            "--policy",
            help="What happens if this command is too slow. Only block can make publishers wait.",
            show_default="drop_oldest; block with --group and --since",
        ),
    ] = None,
    no_echo: Annotated[
        bool, typer.Option("--no-echo", help="Leave out messages that this connection published.")
    ] = False,
    scope: flags.Reach = "global",
    quiet: flags.Quiet = False,
) -> None:
    """Print messages as they arrive. A slow reader of the output misses messages; stderr reports how many.

    busway sub 'price/*/eur' --where venue=krk
    busway sub '**' --json --for 30s | jq .topic
    busway sub jobs --group workers --format '{time} {payload}'
    busway sub 'orders/**' --since 1h
    """
    if sum((raw, json, format is not None)) > 1:
        raise typer.BadParameter("--raw, --json and --format exclude each other")
    if group and since is not None:
        raise typer.BadParameter(
            "--since and --group exclude each other: to share stored messages use a channel (busway take)"
        )
    render = flags.checked(lambda: renderer(raw=raw, json=json, format=format))
    rules = field_flags.rules(where)
    begin = flags.checked(lambda: None if since is None else values.since(since))
    note = (lambda _text: None) if quiet else terminal.note
    advice.print_hints(note, *patterns)
    printer = Printer(render, count, note)
    # An observer must not slow publishers down. With --since it falls behind in the streams and misses nothing.
    # Without patience, publishers of messages that are not stored do not wait for it.
    observes = policy is None and not group

    async def print_all() -> None:
        subscriptions: list[busway.Subscription] = []
        try:
            async with contextlib.AsyncExitStack() as stack:
                bus = await stack.enter_async_context(link.connect(reconnect=True))
                for pattern in patterns:
                    subscription = bus.subscribe(
                        pattern,
                        where=rules,
                        since=begin,
                        notify=notify,
                        watch=withdrawn,
                        listen=listen,
                        group=group,
                        policy=policy or ("block" if group or since is not None else "drop_oldest"),
                        patience=0.0 if observes else 5.0,
                        echo=not no_echo,
                        scope=scope,
                    )
                    subscriptions.append(await stack.enter_async_context(subscription))
                note(f"subscribed to {' '.join(patterns)} at {bus.url}; Ctrl-C ends")
                try:
                    async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
                        reading = [
                            tasks.create_task(read(subscription, printer, [] if group else patterns[:index]))
                            for index, subscription in enumerate(subscriptions)
                        ]
                        await printer.done.wait()
                        for task in reading:
                            task.cancel()
                except TimeoutError:
                    if count is not None:
                        text = f"only {printer.printed} of {count} messages arrived in time"
                        raise terminal.Ended(terminal.TIMEOUT, text) from None
        finally:
            # Not earlier: the broker's report of dropped messages may stand behind messages that are still unread.
            printer.report_missed(sum(subscription.missed for subscription in subscriptions))
            if (lost := sum(subscription.lost for subscription in subscriptions)) > 0:
                note(f"{lost} stored messages were removed before they were read")

    logs.without_missed()
    terminal.run(print_all)
