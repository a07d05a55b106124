"""Runs a declared pipeline: one update of all its tables and flows after another, on a server that lives on."""

import importlib.util
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from busway.errors import BusError, ConnectFailed, Disconnected
from busway.spark.endpoints import Endpoints
from busway.spark.errors import Failure, explain
from busway.spark.options import reading
from busway.spark.pipelines import api, sql_declarations

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("busway.spark")

KINDS: Final = (".sql", ".py")
_MINE: Final = "spark_catalog.default."
_ABOUT: Final = re.compile(r"[Ff]low(?: due to (upstream) failure)?:? '?([^' ]+)'?(?: (?:is|has) ([A-Z]+))?")


class PipelineFailed(BusError):  # noqa: N818 - as the other errors of the bus
    """A pipeline that can't be run: what is wrong, with file and line where they are known."""


class BusGone(PipelineFailed):
    """The bus that it reads or writes can't be reached; it may be there again the next time."""


@dataclass(slots=True)
class Report:
    """What an update has done."""

    rows: dict[str, int] = field(default_factory=dict)
    """Read by each flow of streams."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Messages that did not fit, by the table they went to."""
    finished: list[str] = field(default_factory=list)
    """All flows that came to their end, also those of views that are made anew."""
    seconds: float = 0.0


class Pipeline:
    """A file of declarations, and where its state is kept."""

    def __init__(self, file: Path, state: Path, options: Mapping[str, str]) -> None:
        if file.suffix not in KINDS:
            raise PipelineFailed(f"{file.name} is neither .sql nor .py")
        try:
            self._text = file.read_text()
        except OSError as error:
            raise PipelineFailed(f"{file}: {error.strerror}") from None
        self._file = file
        self._storage = (state / "storage").absolute().as_uri()
        self._options = dict(options)
        self._read_from: list[Mapping[str, str]] | None = None
        """What is read, if that is all known."""
        self._seen: dict[str, Any] | None = None

    def update(
        self,
        spark: "SparkSession",
        *,
        refresh: bool = False,
        check: bool = False,
        progress: Callable[[str, str], None] | None = None,
    ) -> Report:
        """Bring everything up to what there is now. `refresh`: from the beginning; `check`: only look whether it could run.

        `progress` hears of each flow and what has become of it. Raises PipelineFailed.
        """
        from pyspark.pipelines.spark_connect_pipeline import start_run  # noqa: PLC0415 - heavy

        begun = time.monotonic()
        report = Report()
        failed: dict[str, Failure] = {}
        try:
            with _listening(spark, report):
                graph = self._declare(spark)
                self._seen = self._marks()
                for result in start_run(spark, graph, [], refresh, [], check, self._storage):
                    told = result.get("pipeline_event_result")
                    if told is not None:
                        _note(told.event.message, report, failed, progress)
        except PipelineFailed:
            raise
        except Exception as error:
            failure = explain(error)
            if any(isinstance(one.own, ConnectFailed | Disconnected) for one in (failure, *failed.values())):
                raise BusGone(self._told(failure, failed)) from error
            if isinstance(error, BusError):
                raise
            raise PipelineFailed(self._told(failure, failed)) from error
        report.seconds = time.monotonic() - begun
        return report

    def wait(self, seconds: float, ended: Callable[[float], bool]) -> bool:
        """Look so often until there is something new for an update, or `ended` says that it is over; whether that is so.

        Where it isn't known what a pipeline reads (one in Python may read anything), each look finds something new.
        """
        away = False
        while not ended(seconds):
            try:
                marks = self._marks()
            except (ConnectionError, BusError) as error:
                if not away:
                    log.warning("%s; it is looked for again", error)
                away = True
                continue
            away = False
            if marks is None or marks != self._seen:
                return False
        return True

    def _marks(self) -> dict[str, Any] | None:
        """How far the streams go that it reads."""
        found: dict[str, Any] = {}
        for options in self._read_from or ():
            with Endpoints(reading(options)) as places:
                found |= {f"{one.broker}/{one.stream}": one.next for one in places.held()}
        return None if self._read_from is None else found

    def _declare(self, spark: "SparkSession") -> str:
        """Make a graph of what the file declares; its id."""
        from pyspark.pipelines.graph_element_registry import graph_element_registration_context  # noqa: PLC0415
        from pyspark.pipelines.spark_connect_graph_element_registry import (  # noqa: PLC0415
            SparkConnectGraphElementRegistry,
        )
        from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph  # noqa: PLC0415

        graph = create_dataflow_graph(spark, None, None, {})
        registry = SparkConnectGraphElementRegistry(spark, graph)
        with graph_element_registration_context(registry), api.where(self._options):
            if self._file.suffix == ".py":
                self._import(spark, graph)
            else:
                self._read(registry)
        return graph

    def _read(self, registry: Any) -> None:
        try:
            found = sql_declarations.parse(self._text)
        except sql_declarations.Mistake as mistake:
            raise PipelineFailed(f"{self._file.name}, {mistake}") from None
        known = all(one.form == api.FORMAT for one in found.sources)
        self._read_from = [api.place(one.options, self._options) for one in found.sources] if known else None
        for source in found.sources:
            own = {key: source.options[key] for key in ("watermark", "rejected") if key in source.options}
            rest = {key: value for key, value in source.options.items() if key not in own}
            with self._at(source.line):
                api.source(source.name, schema=source.schema, form=source.form, **own, **rest)
        for sink in found.sinks:
            with self._at(sink.line):
                api.sink(sink.name, form=sink.form, **sink.options)
        for flow in found.flows:
            api.flow(flow.name, flow.view, flow.sink)
        if found.rest:
            registry.register_sql(found.rest, Path(self._file.name))

    @contextmanager
    def _at(self, line: int) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise PipelineFailed(f"{self._file.name}, line {line}: {error}") from None

    def _import(self, spark: "SparkSession", graph: str) -> None:
        """As Spark's own runner does it: the file finds `spark`, and may not change the session."""
        from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context  # noqa: PLC0415
        from pyspark.pipelines.block_session_mutations import block_session_mutations  # noqa: PLC0415

        spec = importlib.util.spec_from_file_location(self._file.stem, self._file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        module.__dict__["spark"] = spark
        context = add_pipeline_analysis_context(spark=spark, dataflow_graph_id=graph, flow_name=None)
        try:
            with context, block_session_mutations():
                spec.loader.exec_module(module)
        except Exception as error:
            where = _where(error, self._file)
            raise PipelineFailed(f"{self._file.name}{where}: {explain(error).text}") from error

    def _told(self, failure: Failure, failed: Mapping[str, Failure]) -> str:
        """The first flow that failed says more than the run as a whole."""
        flow, first = next(iter(failed.items()), ("", failure))
        line = f", line {first.line}" if first.line else ""
        return f"{self._file.name}{line}: {flow + ': ' if flow else ''}{first.text}"


@contextmanager
def _listening(spark: "SparkSession", report: Report) -> Iterator[None]:
    """Count what the flows read and reject."""
    from pyspark.sql.streaming.listener import StreamingQueryListener  # noqa: PLC0415

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
            del event

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            name = _short(event.progress.name or "")
            report.rows[name] = report.rows.get(name, 0) + event.progress.numInputRows
            for table, row in (event.progress.observedMetrics or {}).items():
                report.rejected[table] = report.rejected.get(table, 0) + int(row["rows"])

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            del event

    listener = Listener()
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        spark.streams.removeListener(listener)


def _note(
    message: str, report: Report, failed: dict[str, Failure], progress: Callable[[str, str], None] | None
) -> None:
    """An event of the run: `Flow spark_catalog.default.orders is RUNNING.`, or what is wrong with one."""
    said, _, error = message.partition("\nError: ")
    about = _ABOUT.search(said)
    if about is None:
        return
    flow, state = _short(about[2]), about[3] or "FAILED"
    if state == "COMPLETED":
        report.finished.append(flow)
    if error and not about[1]:  # what is upstream says what is wrong
        failed.setdefault(flow, explain(RuntimeError(error)))
    if progress is not None:
        progress(flow, state)


def _short(name: str) -> str:
    return name.removeprefix(_MINE)


def _where(error: BaseException, file: Path) -> str:
    """The last line of the file that the error passed."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f", line {line}" if line else ""
