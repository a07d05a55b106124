"""`busway lake optimize`, `vacuum` and `upgrade`: merge the small files of a lake, delete old ones, convert older lakes.

They need no Spark. Called by busway.cli.app.
"""

from dataclasses import asdict
from typing import Annotated

import typer

from busway.cli.common import flags, terminal, values
from busway.cli.lake.archive import required_lake
from busway.cli.lake.job import Job, table_job
from busway.cli.lake.source import Streams


@table_job
def lake_optimize(
    job: Job,
    stream: Streams = None,
    below: Annotated[
        str,
        typer.Option("--below", help="Merge files smaller than this, into files of about this size.", metavar="SIZE"),
    ] = "256m",
    json: flags.Json = False,
) -> None:
    """Merge the small files of a lake, by stream and day (OPTIMIZE). An archive may run meanwhile.

    busway lake optimize --lake /srv/lake
    """
    lake, size = required_lake(job), flags.checked(lambda: values.size(below))

    def work() -> None:
        from busway.spark.lake.upkeep import optimize

        done = optimize(lake, streams=stream or (), below=size)
        for one in done:
            if json:
                terminal.record(asdict(one))
            elif not job.quiet:
                files = f"{one.before} files became {one.after}"
                terminal.note(f"{one.stream} {one.date}: {files}, {values.shown_size(one.bytes)}")
        if not done and not job.quiet:
            terminal.note("there are no files to merge")

    job.guard(work)


@table_job
def lake_vacuum(
    job: Job,
    keep: Annotated[
        str, typer.Option("--keep", help="How long the files of older versions stay for their readers.", metavar="TIME")
    ] = "7d",
    force: Annotated[
        bool, typer.Option("--force", help="Allow --keep below 1h; no archive and no read may run then.")
    ] = False,
    json: flags.Json = False,
) -> None:
    """Delete the files that no version of the table needs any more, and those of killed archives (VACUUM).

    busway lake vacuum --lake /srv/lake --keep 30d
    """
    lake, seconds = required_lake(job), flags.checked(lambda: values.duration(keep))

    def work() -> None:
        from busway.spark.lake.upkeep import vacuum

        deleted = vacuum(lake, keep=seconds, force=force)
        if json:
            terminal.record({"deleted": deleted})
        elif not job.quiet:
            terminal.note(f"deleted {len(deleted)} files")

    job.guard(work)


@table_job
def lake_upgrade(job: Job, json: flags.Json = False) -> None:
    """Make a Delta table of a lake that an older Busway wrote. No file is written anew.

    busway lake upgrade --lake /srv/lake
    """
    lake = required_lake(job)

    def work() -> None:
        from busway.spark.lake.upgrade import upgrade

        done = upgrade(lake)
        if json:
            terminal.record(asdict(done))
        elif not job.quiet:
            terminal.note(f"{lake} is a Delta table now: {done.rows:,} messages in {done.files} files")

    job.guard(work)
