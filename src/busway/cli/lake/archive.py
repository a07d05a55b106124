"""`busway lake archive` and `compact`: write streams to a lake and merge its small files. Called by busway.cli.app."""

from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from busway.cli.common import flags, terminal, values
from busway.cli.lake.job import Ending, Job, lake_job, spark_job
from busway.cli.lake.progress import Bar
from busway.cli.lake.source import Streams, Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from busway.spark.lake.archive import Progress
    from busway.spark.lake.compact import Compacted


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
    compact_below: Annotated[
        str,
        typer.Option(
            "--compact-below",
            help="Merge files smaller than this when there are many; none: never.",
            metavar="SIZE",
        ),
    ] = "32m",
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="Report messages that were removed before they were archived, and continue."),
    ] = False,
    json: flags.Json = False,
) -> None:
    """Archive streams as Parquet, each message once. SIGTERM or Ctrl-C ends it after the current round.

    busway lake archive --lake /srv/lake --every 1m
    busway lake archive --lake /srv/lake --path /var/lib/busway --once
    """
    lake = required_lake(job)
    interval = flags.checked(lambda: values.duration(every))
    below = None if compact_below == "none" else flags.checked(lambda: values.size(compact_below))

    def work(spark: "SparkSession", bar: Bar) -> None:
        from busway.spark.lake.archive import archive

        total = [0, 0, 0]
        damaged: set[str] = set()

        def report(done: "Progress") -> None:
            total[0] += done.rows
            total[1] += done.bytes
            total[2] += done.lost
            damaged.update(done.damaged)
            if json and done.number:
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
                once=once,
                interval=interval,
                channel=channel,
                progress=report,
                stop=ending.event,
                compact_below=below,
                fail_on_data_loss=not skip_lost,
                options=job.options,
            )
        if not job.quiet:
            terminal.note(f"archived {total[0]:,} messages, {values.shown_size(total[1])}{missing(total[2], damaged)}")

    job.run(work)


@lake_job
def lake_compact(
    job: Job,
    stream: Streams = None,
    below: Annotated[str, typer.Option("--below", help="Merge files smaller than this.", metavar="SIZE")] = "64m",
    target: Annotated[str, typer.Option("--target", help="Approximate size of merged files.", metavar="SIZE")] = "256m",
    grace: Annotated[
        str, typer.Option("--grace", help="How long replaced files remain for running readers.", metavar="TIME")
    ] = "10m",
    json: flags.Json = False,
) -> None:
    """Merge the small files of a lake, by stream and day. A running archive does this itself: do not run both.

    busway lake compact --lake /srv/lake
    """
    lake = required_lake(job)
    sizes = flags.checked(lambda: (values.size(below), values.size(target)))
    seconds = flags.checked(lambda: values.duration(grace))

    def work(spark: "SparkSession", bar: Bar) -> None:
        from busway.spark.lake.compact import compact

        def report(done: "Compacted") -> None:
            if json:
                terminal.record(asdict(done))
            elif not job.quiet:
                files = f"{done.before} files became {done.after}"
                terminal.note(
                    f"{done.stream} {done.date}: {files}, {done.rows:,} messages, {values.shown_size(done.bytes)}"
                )

        bar.say("compacting")
        done = compact(
            spark, lake, streams=stream or (), below=sizes[0], target=sizes[1], grace=seconds, progress=report
        )
        if not done and not job.quiet:
            terminal.note("there are no files to merge")

    job.run(work)
