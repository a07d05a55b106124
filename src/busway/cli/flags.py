"""Flags that several verbs share. Each has an environment twin: BUSWAY_<VERB>_<FLAG>, made by the app's prefix."""

from typing import Annotated

import typer

from busway.cli import values

Topic = Annotated[str, typer.Argument(help="Topic, such as price/eth/eur.", show_default=False)]
Body = Annotated[str | None, typer.Argument(help="Payload; - reads it from stdin, absent = empty.", show_default=False)]
File = Annotated[str | None, typer.Option("--file", "-f", help="Read the payload from this file.", metavar="FILE")]
Lines = Annotated[bool, typer.Option("--lines", "-l", help="Each line of stdin (or --file) is a message.")]
Count = Annotated[
    int | None,
    typer.Option(
        "--count", "-n", help="End after so many messages.", parser=values.count, metavar="N", show_default=False
    ),
]
Repeat = Annotated[
    int | None,
    typer.Option("--count", "-n", help="Send it so many times.", parser=values.count, metavar="N", show_default="1"),
]
For = Annotated[
    float | None,
    typer.Option(
        "--for", help="End after this time (10s, 5m, 2h).", parser=values.duration, metavar="TIME", show_default=False
    ),
]
Rate = Annotated[
    float | None,
    typer.Option("--rate", help="At most so many messages a second.", min=0.001, metavar="N", show_default=False),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", "-t", help="Time to wait.", parser=values.duration, metavar="TIME", show_default="5s"),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout: one object, or one per line for streams.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No notes on stderr; errors are still told.")]
