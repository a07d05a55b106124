"""`busway push`: hand a payload to exactly one consumer."""

from busway.cli import address, flags, terminal
from busway.cli.body import Source
from busway.cli.link import Link, linked


@linked
def push(
    link: Link,
    topic: flags.Topic,
    body: flags.Body = None,
    file: flags.File = None,
    field: flags.Field = None,
    lines: flags.Lines = False,
    count: flags.Repeat = None,
    rate: flags.Rate = None,
    seconds: flags.For = None,
    timeout: flags.Timeout = 5.0,
    scope: flags.Reach = "global",
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Deliver a message to exactly one subscriber; without one the command fails (exit code 4).

    busway push jobs '{"resize": "cat.png"}'
    """
    fields = address.fields(field)
    source = Source(body, file, lines, count, rate, seconds).checked()

    bar = source.progress(shown=not (json or quiet))

    async def hand_over() -> None:
        async with link.connect(reconnect=False) as bus:
            try:
                with bar:
                    async for run in source.runs():
                        for payload in run:
                            await bus.push(topic, payload, fields=fields, timeout=timeout, scope=scope)
                            bar.add(1)
            finally:
                if json:
                    terminal.record({"topic": topic, "taken": bar.sent})

    terminal.run(hand_over, timed=True)
