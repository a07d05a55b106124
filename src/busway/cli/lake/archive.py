"""`busway lake archive`: writes streams to a lake. Called by busway.cli.app."""

from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from busway.cli.common import flags, terminal, values
from busway.cli.lake.job import Ending, Job, spark_job
from busway.cli.lake.progress import Bar
from busway.cli.lake.source import Streams, Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from busway.spark.lake.archive import Progress


def required_lake(job: Job) -> str:
    """Return the folder of the lake. Raises BadParameter without --lake."""
    if not job.lake:
        raise typer.BadParameter("this command needs a lake: give its folder with --lake DIR")
    return job.lake


def missing(lost: int, damaged: Collection[str]) -> str:
    """Describe the messages that are missing in the archive."""
    removed = f"; {lost:,} were removed before they were archived" if lost else ""
    return removed + (f"; damaged messages of {', '.join(sorted(damaged))} are missing" if damaged else "")


@spark_job
def lake_archive(
    job: Job,
    stream: Streams = None,
    topic: Topics = None,
    once: Annotated[bool, typer.Option("--once", help="Archive the messages stored until now, then end.")] = False,
    every: Annotated[str, typer.Option("--every", help="Interval between rounds.", metavar="TIME")] = "10s",
    channel: Annotated[
        str | None,
        typer.Option(
            "--channel",
            help="Channel of each stream that records the progress of the archive.",
            metavar="NAME",
            show_default="archived; with --topic none",
        ),
    ] = None,
    type: Annotated[  # noqa: A002 - the name of the flag
        list[str] | None,
        typer.Option(
            "--type",
            help="Typed columns: a protocol class module:Class, or PATTERN=FILE with a JSON Schema; repeatable.",
            metavar="TYPE",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Use a streaming query of Spark instead of rounds.")] = False,
    optimize_below: Annotated[
        str,
        typer.Option(
            "--optimize-below",
            help="Merge files smaller than this when there are many; none: never.",
            metavar="SIZE",
        ),
    ] = "32m",
    keep: Annotated[
        str,
        typer.Option(
            "--keep", help="Once a day delete files that no version of this time needs; none: never.", metavar="TIME"
        ),
    ] = "7d",
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="Report messages that were removed before they were archived, and continue."),
    ] = False,
    json: flags.Json = False,
) -> None:
    """Archive streams in a Delta table, each message once. SIGTERM or Ctrl-C ends it after the current round.

    busway lake archive --lake /srv/lake --every 1m
    busway lake archive --lake /srv/lake --path /var/lib/busway --once
    """
    lake = required_lake(job)
    interval = flags.checked(lambda: values.duration(every))
    below = None if optimize_below == "none" else flags.checked(lambda: values.size(optimize_below))
    kept = None if keep == "none" else flags.checked(lambda: values.duration(keep))

    def work(spark: "SparkSession", bar: Bar) -> None:
        from busway.spark.lake.archive import archive

        total = [0, 0, 0]
        damaged: set[str] = set()

        def report(done: "Progress") -> None:
            total[0] += done.rows
            total[1] += done.bytes
            total[2] += done.lost
            damaged.update(done.damaged)
            if json and done.version >= 0:
                terminal.record(asdict(done))
            figures = f"{total[0]:,} messages, {values.shown_size(total[1])}"
            bar.say(f"archiving: {figures}; {done.lag:,} to go" if done.lag else f"archived {figures}; waiting")

        bar.say("archiving")
        with Ending() as ending:
            archive(
                spark,
                lake,
                streams=stream or (),
                topics=topic or ("**",),
                types=type or (),
                once=once,
                follow=follow,
                interval=interval,
                channel=channel,
                progress=report,
                stop=ending.event,
                optimize_below=below,
                keep=kept,
                fail_on_data_loss=not skip_lost,
                options=job.options,
            )
        if not job.quiet:
            terminal.note(f"archived {total[0]:,} messages, {values.shown_size(total[1])}{missing(total[2], damaged)}")

    job.run(work)
