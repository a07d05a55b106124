"""`busway lake run` and `busway lake stop`: declared pipelines that keep running, and the Spark server they leave behind."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

from busway.cli.common import flags, terminal, values
from busway.cli.lake.job import Ending, Job, plain_job, spark_job
from busway.cli.lake.progress import Bar

if TYPE_CHECKING:
    from busway.spark.pipelines.runner import Pipeline, Report

_FOLDER: Final = ".busway"


def _time(name: str, *, help: str, default: str) -> Any:  # noqa: A002 - typer's own word
    return typer.Option(name, help=help, parser=values.duration, metavar="TIME", show_default=default)


@spark_job
def lake_run(
    job: Job,
    file: Annotated[Path, typer.Argument(help="The pipeline: .sql or .py.", metavar="FILE", show_default=False)],
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            help="Folder of its tables, checkpoints and server.",
            metavar="DIR",
            show_default=".busway/NAME beside the file, of Python .busway/NAME.py",
        ),
    ] = None,
    every: Annotated[float, _time("--every", help="Interval between checks for new messages.", default="1s")] = "1s",  # type: ignore[assignment] # typer parses it
    once: Annotated[bool, typer.Option("--once", help="One update, then end.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only check whether the pipeline can run.")] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Empty all tables first and recompute them from the stored messages.")
    ] = False,
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
    from busway.spark.pipelines.runner import BusGone, Pipeline
    from busway.spark.runtime import connect_server

    folder = _state(file) if state is None else state.absolute()

    def work() -> None:
        pipeline = Pipeline(file.absolute(), folder, job.options)
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
                terminal.note(f"runs {file.name}, state in {folder}; Ctrl-C ends")
            number = 0
            while True:
                number += 1
                first = number == 1
                try:
                    with _Shown(bar, number) as shown, used.busy():
                        report = pipeline.update(spark, refresh=refresh and first, check=check, progress=shown)
                except BusGone as gone:
                    if once or check or first:
                        raise
                    terminal.note(f"{gone}; it is tried again")
                    if ending.wait(every):
                        break
                    continue
                if check:
                    break
                _tell(number, report, json=json, quiet=job.quiet)
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
            terminal.note(f"no server runs for {folder}")

    job.guard(work)


def _state(file: Path) -> Path:
    # Not the same for orders.py and orders.sql.
    return file.absolute().parent / _FOLDER / (file.stem if file.suffix == ".sql" else file.name)


class _Shown:
    """The flows of an update on the bar."""

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


def _tell(number: int, report: "Report", *, json: bool, quiet: bool) -> None:
    if json:
        terminal.record({"update": number} | {key: getattr(report, key) for key in ("rows", "rejected", "seconds")})
        return
    if quiet or (number > 1 and not any(report.rows.values())):
        return
    rows = ", ".join(f"{flow} {count:,}" for flow, count in report.rows.items()) or "nothing new"
    lost = sum(report.rejected.values())
    rejected = f"; {lost:,} rejected" if lost else ""
    terminal.note(f"update {number}: {rows}{rejected} ({report.seconds:.1f} s)")
