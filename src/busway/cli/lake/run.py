"""`busway lake run` and `stop`: run declared pipelines, and stop their Spark server. Called by busway.cli.app."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

from busway.cli.common import flags, terminal, values
from busway.cli.lake.job import Ending, Job, plain_job, spark_job
from busway.cli.lake.progress import Bar

if TYPE_CHECKING:
    from busway.spark.pipelines.runner import Pipeline, Report

_FOLDER: Final = ".busway"


class TableFormat(StrEnum):
    """The format of the tables of a pipeline."""

    PARQUET = "parquet"
    DELTA = "delta"


def _time(name: str, *, help: str, default: str) -> Any:  # noqa: A002 - typer's own word
    return typer.Option(name, help=help, parser=values.duration, metavar="TIME", show_default=default)


@spark_job
def lake_run(
    job: Job,
    file: Annotated[
        Path, typer.Argument(help="File with the pipeline: .sql or .py.", metavar="FILE", show_default=False)
    ],
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            help="Folder for tables, checkpoints and the Spark server of the pipeline.",
            metavar="DIR",
            show_default=".busway/NAME beside the file, for Python .busway/NAME.py",
        ),
    ] = None,
    every: Annotated[float, _time("--every", help="Interval between checks for new messages.", default="1s")] = "1s",  # type: ignore[assignment] # typer parses it
    once: Annotated[bool, typer.Option("--once", help="Run one update, then end.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check whether the pipeline can run, without running it.")
    ] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Empty all tables first and recompute them from the stored messages.")
    ] = False,
    tables: Annotated[
        TableFormat,
        typer.Option("--tables", help="Format of the tables; delta: also as Delta tables in DIR/delta of the state."),
    ] = TableFormat.PARQUET,
    idle: Annotated[
        float, _time("--idle", help="Time without a run after which the Spark server ends.", default="15m")
    ] = "15m",  # type: ignore[assignment]
    stop_server: Annotated[bool, typer.Option("--stop-server", help="End the Spark server with the run.")] = False,
    json: flags.Json = False,
) -> None:
    """Run a Spark pipeline that is declared in SQL or Python. SIGTERM and Ctrl-C finish the current update and end it.

    busway lake run orders.sql
    busway lake run orders.sql --once --json
    """
    from busway.spark.pipelines.runner import BusUnreachable, Pipeline
    from busway.spark.runtime import connect_server

    folder = _state(file) if state is None else state.absolute()

    def work() -> None:
        pipeline = Pipeline(file.absolute(), folder, job.options, delta=tables is TableFormat.DELTA)
        with job.bar() as bar, connect_server.use(folder) as used:
            bar.say("starting Spark")
            try:
                running = connect_server.start(used, job.master, job.settings, idle)
                with connect_server.connected(running) as spark:
                    _updates(pipeline, spark, used, bar)
            finally:
                if stop_server:
                    connect_server.stop(folder)

    def _updates(pipeline: "Pipeline", spark: Any, used: Any, bar: Bar) -> None:
        with Ending() as ending:
            if not (once or check or job.quiet):
                terminal.note(f"running {file.name}, state in {folder}; Ctrl-C ends")
            number = 0
            while True:
                number += 1
                first = number == 1
                try:
                    with _FlowProgress(bar, number) as shown, used.busy():
                        report = pipeline.update(spark, refresh=refresh and first, check=check, progress=shown)
                except BusUnreachable as error:
                    if once or check or first:
                        raise
                    terminal.note(f"{error}; the update will be retried")
                    if ending.wait(every):
                        break
                    continue
                if check:
                    break
                _report(number, report, json=json, quiet=job.quiet)
                if once or ending.asked or pipeline.wait(every, ending.wait):
                    break

    job.guard(work)


@plain_job
def lake_stop(
    job: Job,
    pipeline: Annotated[
        Path, typer.Argument(help="The file of the pipeline, or its state folder.", metavar="FILE", show_default=False)
    ],
) -> None:
    """Stop the Spark server of a pipeline; the state of the pipeline stays.

    busway lake stop orders.sql
    """
    from busway.spark.runtime import connect_server

    folder = pipeline if pipeline.is_dir() else _state(pipeline)

    def work() -> None:
        if not connect_server.stop_unused(folder.absolute()) and not job.quiet:
            terminal.note(f"no Spark server runs for {folder}")

    job.guard(work)


def _state(file: Path) -> Path:
    # orders.py and orders.sql need different folders.
    return file.absolute().parent / _FOLDER / (file.stem if file.suffix == ".sql" else file.name)


class _FlowProgress:
    """Shows on the bar how many flows of an update have finished."""

    def __init__(self, bar: Bar, number: int) -> None:
        self._bar = bar
        self._number = number
        self._flows: dict[str, bool] = {}

    def __enter__(self) -> Self:
        self._bar.say(f"update {self._number}")
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.say("waiting")

    def __call__(self, flow: str, state: str) -> None:
        self._flows[flow] = state in {"COMPLETED", "FAILED", "EXCLUDED", "SKIPPED"}
        done, total = sum(self._flows.values()), len(self._flows)
        self._bar.reached(done, total, f"{done}/{total} flows")


def _report(number: int, report: "Report", *, json: bool, quiet: bool) -> None:
    if json:
        terminal.record(
            {"update": number} | {key: getattr(report, key) for key in ("rows", "rejected", "published", "seconds")}
        )
        return
    if quiet or (number > 1 and not any(report.rows.values())):
        return
    rows = ", ".join(f"{flow} {count:,}" for flow, count in report.rows.items()) or "nothing new"
    lost = sum(report.rejected.values())
    rejected = f"; {lost:,} rejected" if lost else ""
    terminal.note(f"update {number}: {rows}{rejected} ({report.seconds:.1f} s)")
