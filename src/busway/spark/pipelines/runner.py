"""Runner of declared pipelines: updates the tables and flows of a file on Spark. `busway lake run` calls it."""

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
from busway.spark.options import read_options
from busway.spark.pipelines import api, sql_declarations
from busway.spark.pipelines.delta_tables import publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("busway.spark")

KINDS: Final = (".sql", ".py")
_CATALOG: Final = "spark_catalog.default."
_FLOW_EVENT: Final = re.compile(r"[Ff]low(?: due to (upstream) failure)?:? '?([^' ]+)'?(?: (?:is|has) ([A-Z]+))?")


class PipelineFailed(BusError):  # noqa: N818 - as the other errors of the bus
    """A pipeline can't run. The text has the reason, with file and line if they are known."""


class BusUnreachable(PipelineFailed):
    """The bus of a pipeline can't be reached. A retry may succeed."""


@dataclass(slots=True)
class Report:
    """The result of an update."""

    rows: dict[str, int] = field(default_factory=dict)
    """Number of rows that each streaming flow has read."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Number of messages that did not fit their schema, by the table of rejected messages."""
    finished: list[str] = field(default_factory=list)
    """All flows that finished, including flows of materialized views."""
    published: dict[str, int] = field(default_factory=dict)
    """The versions of the Delta tables that the update has changed."""
    seconds: float = 0.0
    """Duration of the update."""


class Pipeline:
    """A pipeline: its file of declarations, and the folder of its state."""

    def __init__(self, file: Path, state: Path, options: Mapping[str, str], *, delta: bool = False) -> None:
        if file.suffix not in KINDS:
            raise PipelineFailed(f"{file.name} has another suffix: give a file with .sql or .py")
        try:
            self._text = file.read_text()
        except OSError as error:
            raise PipelineFailed(f"{file} can't be read: {error.strerror}") from None
        self._file = file
        self._storage = (state / "storage").absolute().as_uri()
        self._options = dict(options)
        self._delta = state / "delta" if delta else None
        """The folder of the Delta tables."""
        self._read_from: list[Mapping[str, str]] | None = None
        """The options of all sources, or None if they are unknown."""
        self._last_ends: dict[str, Any] | None = None
        """The ends of the streams at the last update."""

    def update(
        self,
        spark: "SparkSession",
        *,
        refresh: bool = False,
        check: bool = False,
        progress: Callable[[str, str], None] | None = None,
    ) -> Report:
        """Process all messages up to now. `refresh`: from the beginning. `check`: only check the pipeline.

        `progress` is called with each flow and its state. Raises PipelineFailed.
        """
        from pyspark.pipelines.spark_connect_pipeline import start_run  # noqa: PLC0415 - heavy

        start_time = time.monotonic()
        report = Report()
        failed: dict[str, Failure] = {}
        try:
            with _listening(spark, report):
                graph = self._declare(spark)
                self._last_ends = self._ends()
                for result in start_run(spark, graph, [], refresh, [], check, self._storage):
                    event = result.get("pipeline_event_result")
                    if event is not None:
                        _handle_event(event.event.message, report, failed, progress)
            if self._delta is not None and not check:
                report.published = {one.name: one.version for one in publish(spark, self._delta)}
        except PipelineFailed:
            raise
        except Exception as error:
            failure = explain(error)
            if any(isinstance(cause.own, ConnectFailed | Disconnected) for cause in (failure, *failed.values())):
                raise BusUnreachable(self._message(failure, failed)) from error
            if isinstance(error, BusError):
                raise
            raise PipelineFailed(self._message(failure, failed)) from error
        report.seconds = time.monotonic() - start_time
        return report

    def wait(self, seconds: float, ended: Callable[[float], bool]) -> bool:
        """Wait for new messages, with a check every `seconds`. Returns True if `ended` did, which ends the run.

        If the sources are unknown (a pipeline in Python may read anything), every check counts as new messages.
        """
        unreachable = False
        while not ended(seconds):
            try:
                ends = self._ends()
            except (ConnectionError, BusError) as error:
                if not unreachable:
                    log.warning("%s; the connection will be retried", error)
                unreachable = True
                continue
            unreachable = False
            if ends is None or ends != self._last_ends:
                return False
        return True

    def _ends(self) -> dict[str, Any] | None:
        """Return the end of each stream that the pipeline reads, or None if its sources are unknown."""
        found: dict[str, Any] = {}
        for options in self._read_from or ():
            with Endpoints(read_options(options)) as endpoints:
                found |= {f"{info.broker}/{info.stream}": info.next for info in endpoints.available()}
        return None if self._read_from is None else found

    def _declare(self, spark: "SparkSession") -> str:
        """Create Spark's graph of the declarations in the file. Returns its id."""
        from pyspark.pipelines.graph_element_registry import graph_element_registration_context  # noqa: PLC0415
        from pyspark.pipelines.spark_connect_graph_element_registry import (  # noqa: PLC0415
            SparkConnectGraphElementRegistry,
        )
        from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph  # noqa: PLC0415

        graph = create_dataflow_graph(spark, None, None, {})
        registry = SparkConnectGraphElementRegistry(spark, graph)
        with graph_element_registration_context(registry), api.defaults(self._options):
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
        known = all(source.form == api.FORMAT for source in found.sources)
        self._read_from = [api.with_bus(source.options, self._options) for source in found.sources] if known else None
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
        """Add file and line to a ValueError."""
        try:
            yield
        except ValueError as error:
            raise PipelineFailed(f"{self._file.name}, line {line}: {error}") from None

    def _import(self, spark: "SparkSession", graph: str) -> None:
        """Run a Python file as Spark's runner does: it gets the variable `spark`, and may not change the session."""
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

    def _message(self, failure: Failure, failed: Mapping[str, Failure]) -> str:
        """Return the message of the first failed flow, which is more precise than the failure of the run."""
        flow, first = next(iter(failed.items()), ("", failure))
        line = f", line {first.line}" if first.line else ""
        return f"{self._file.name}{line}: {flow + ': ' if flow else ''}{first.text}"


@contextmanager
def _listening(spark: "SparkSession", report: Report) -> Iterator[None]:
    """Count the rows that the flows read and reject."""
    from pyspark.sql.streaming.listener import StreamingQueryListener  # noqa: PLC0415

    class Listener(StreamingQueryListener):
        """Adds the figures of finished micro-batches to the report."""

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


def _handle_event(
    message: str, report: Report, failed: dict[str, Failure], progress: Callable[[str, str], None] | None
) -> None:
    """Handle an event of the run: `Flow spark_catalog.default.orders is RUNNING.`, or the error of a flow."""
    text, _, error = message.partition("\nError: ")
    event = _FLOW_EVENT.search(text)
    if event is None:
        return
    flow, state = _short(event[2]), event[3] or "FAILED"
    if state == "COMPLETED":
        report.finished.append(flow)
    if error and not event[1]:  # the flow upstream has the reason
        failed.setdefault(flow, explain(RuntimeError(error)))
    if progress is not None:
        progress(flow, state)


def _short(name: str) -> str:
    return name.removeprefix(_CATALOG)


def _where(error: BaseException, file: Path) -> str:
    """Return the last line of the file in the traceback of an error."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f", line {line}" if line else ""
