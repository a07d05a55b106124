"""Jobs of `busway lake`: the shared flags, the Spark session, errors and signals. The verbs use its decorators.

PySpark is imported only when a verb runs.
"""

import contextlib
import functools
import inspect
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

from busway.cli.common import connect, logs, terminal, values
from busway.cli.common.advice import advice
from busway.cli.lake.progress import Bar
from busway.errors import BusError
from busway.settings import DEFAULT_URL
from busway.transport import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from busway.spark.errors import Failure

_PANEL: Final = "Spark"
_QUERY_ERRORS: Final = ("PARSE_", "UNRESOLVED_", "TABLE_OR_VIEW_NOT_FOUND", "DATATYPE_MISMATCH", "INVALID_")
"""Beginnings of the Spark error conditions that mean a wrong query."""


def _flag(*names: str, help: str, **more: Any) -> Any:  # noqa: A002 - typer's own word
    variable = "BUSWAY_LAKE_" + names[0].lstrip("-").replace("-", "_").upper()
    return typer.Option(*names, help=help, envvar=variable, rich_help_panel=_PANEL, **more)


Url = Annotated[
    list[str] | None,
    typer.Option(
        "--url",
        help="Address of a broker; repeatable; all of these brokers are read.",
        envvar="BUSWAY_URL",
        rich_help_panel="Connection",
        metavar="ADDRESS",
        show_default=DEFAULT_URL,
    ),
]
DataFolder = Annotated[
    list[str] | None,
    typer.Option(
        "--path",
        help="Data folder of a broker, instead of --url; repeatable.",
        envvar="BUSWAY_LAKE_PATH",
        rich_help_panel="Connection",
        metavar="DIR",
        show_default=False,
    ),
]
Folder = Annotated[
    str | None,
    _flag("--lake", help="Folder of the archive (path or URL).", metavar="DIR", show_default=False),
]
Master = Annotated[
    str | None,
    _flag("--master", help="Spark master: local[2], spark://host:7077, ...", show_default="local[*]", metavar="MASTER"),
]
Conf = Annotated[
    list[str] | None,
    _flag("--conf", help="A setting of Spark; repeatable.", metavar="KEY=VALUE", show_default=False),
]
Debug = Annotated[bool, _flag("--debug", help="Show the complete log of Spark and complete errors.")]
Quiet = Annotated[bool, _flag("--quiet", "-q", help="Print no notes and no progress on stderr, only errors.")]


@dataclass(frozen=True, slots=True)
class Job:
    """The source of the messages and the settings of Spark. Call checked() before anything else."""

    url: list[str] | None = None
    path: list[str] | None = None
    lake: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    master: str | None = None
    conf: list[str] | None = None
    debug: bool = False
    quiet: bool = False

    def checked(self) -> Self:
        if self.key and not self.cert:
            raise typer.BadParameter("--key needs --cert: give the certificate of the key")
        if self.path and self.url and self.url != os.environ.get("BUSWAY_URL", "").split():
            raise typer.BadParameter(
                "--url and --path exclude each other: give the address of a broker or its data folder"
            )
        try:
            for url in self.url or ():
                parse(values.connect_address(url))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        for path in self.path or ():
            if not Path(path).is_dir():
                raise typer.BadParameter(f"--path: there is no folder {path!r}; give the data folder of a broker")
        for setting in self.conf or ():
            if "=" not in setting:
                raise typer.BadParameter(f"--conf: {setting!r} is not a setting: write key=value")
        return self

    @property
    def settings(self) -> dict[str, str]:
        """The settings of --conf."""
        return {key: value for key, _, value in (setting.partition("=") for setting in self.conf or ())}

    @property
    def has_source(self) -> bool:
        """True if --url or --path is given, False if the default address is used."""
        return bool(self.url or self.path)

    @property
    def options(self) -> dict[str, str]:
        """The flags as options of the Spark source. With a url they are also options of the sink."""
        if self.path:
            return {"path": json.dumps([str(Path(path).absolute()) for path in self.path])}
        urls = [values.connect_address(url) for url in self.url or ()] or [DEFAULT_URL]
        made = {"url": ",".join(urls)}
        for name, file in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if file:
                made[name] = str(Path(file).absolute())
        return made

    def run(
        self, work: "Callable[[SparkSession, Bar], None]", *, hint: "Callable[[Failure], str] | None" = None
    ) -> None:
        """Call `work` with a Spark session and a progress bar. An error becomes one line on stderr and an exit code.

        `hint` returns advice for a failure, or an empty text.
        """

        def start() -> None:
            with self.bar() as bar, self.session(bar) as spark:
                work(spark, bar)

        self.guard(start, hint=hint)

    def bar(self) -> Bar:
        """Return a progress bar. It draws only on a terminal and without --quiet."""
        return Bar(shown=terminal.notes.is_terminal and not self.quiet)

    @contextlib.contextmanager
    def session(self, bar: Bar) -> "Iterator[SparkSession]":
        """Yield the Spark session of this process. A session that is created here is stopped at the end."""
        from busway.spark.runtime.session import require, session

        require()
        os.environ["TZ"] = "UTC"  # PySpark returns times in the zone of this process, without an offset
        time.tzset()
        with tempfile.TemporaryDirectory(prefix="busway-") as folder, contextlib.ExitStack() as stack:
            log, conf = Path(folder) / "spark.log", self.settings
            if created := _active() is None:
                bar.say("starting Spark")
                conf = {"spark.sql.warehouse.dir": f"{folder}/tables"} | conf
            try:
                spark = session(self.master, conf=conf, log=None if self.debug else log)
            except Exception:
                if log.exists():
                    sys.stderr.write(log.read_text(errors="replace"))
                raise
            if created:
                stack.callback(spark.stop)
            _silence_errors(shown=self.debug)
            bar.follow(spark)
            stack.callback(bar.close)
            yield spark

    def guard(self, work: Callable[[], None], *, hint: "Callable[[Failure], str] | None" = None) -> None:
        """Call `work`. An error becomes one line on stderr and an exit code. `hint` returns advice for a failure."""
        try:
            logs.begin(quiet=self.quiet)
            work()
        except (typer.Exit, typer.BadParameter):
            raise
        except terminal.Ended as ended:
            if ended.text:
                terminal.note(ended.text)
            raise typer.Exit(ended.code) from None
        except KeyboardInterrupt:
            raise typer.Exit(terminal.INTERRUPTED) from None
        except BrokenPipeError:
            terminal.silence_stdout()
            raise typer.Exit(terminal.OK) from None
        except Exception as error:  # noqa: BLE001 - every error is reported
            if self.debug:
                traceback.print_exc()
            self._fail(error, hint)

    def _fail(self, error: Exception, hint: "Callable[[Failure], str] | None") -> None:
        from busway.spark.errors import explain

        failure = explain(error)
        text = (hint(failure) if hint else "") or (advice(failure.own) if failure.own else "")
        if not text and not self.debug and not isinstance(error, BusError | OSError | ValueError):
            text = "" if failure.condition else "--debug shows more"
        print(f"busway: {failure.message} ({text})" if text else f"busway: {failure.message}", file=sys.stderr)
        if failure.own is not None:
            raise typer.Exit(terminal.exit_code(failure.own)) from None
        raise typer.Exit(terminal.REJECTED if failure.condition.startswith(_QUERY_ERRORS) else terminal.ERROR) from None


def _active() -> "SparkSession | None":
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _silence_errors(*, shown: bool) -> None:
    """Drop PySpark's log lines about errors that it also raises, unless `shown`."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).addFilter(lambda _record: shown)


class Ending:
    """SIGINT and SIGTERM as an event that a verb checks between two rounds. A second signal raises KeyboardInterrupt.

    Enter it after Spark has started, because Spark installs its own handler of SIGINT.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._former: dict[int, Any] = {}

    @property
    def event(self) -> threading.Event:
        """Set after the first signal."""
        return self._asked

    @property
    def asked(self) -> bool:
        """True after the first signal."""
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for the first signal. Returns False after `seconds`."""
        return self._asked.wait(seconds)

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._former[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)

    def _received(self, _number: int, _frame: object) -> None:
        if self._asked.is_set():
            raise KeyboardInterrupt
        self._asked.set()


_FLAGS: Final[dict[str, tuple[Any, Any]]] = {
    "url": (Url, None),
    "path": (DataFolder, None),
    "ca": (connect.Ca, None),
    "cert": (connect.Cert, None),
    "key": (connect.Key, None),
    "lake": (Folder, None),
    "master": (Master, None),
    "conf": (Conf, None),
    "debug": (Debug, False),
    "quiet": (Quiet, False),
}


def spark_job(verb: Callable[..., None]) -> Callable[..., None]:
    """Decorate a verb whose first parameter is a Job: replace the parameter with all flags of a job."""
    return _flagged(verb, tuple(_FLAGS))


def table_job(verb: Callable[..., None]) -> Callable[..., None]:
    """Decorate a verb that needs only a lake."""
    return _flagged(verb, ("lake", "debug", "quiet"))


def plain_job(verb: Callable[..., None]) -> Callable[..., None]:
    """Decorate a verb that needs no lake, no Spark session and no bus."""
    return _flagged(verb, ("debug", "quiet"))


def _flagged(verb: Callable[..., None], names: Collection[str]) -> Callable[..., None]:
    @functools.wraps(verb)
    def with_flags(**given: Any) -> None:
        job = Job(**{name: given.pop(name) for name in names}).checked()
        verb(job, **given)

    own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _FLAGS.items()
        if name in names
    ]
    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    with_flags.__signature__ = inspect.Signature([*keyword, *added])  # type: ignore[attr-defined]
    return with_flags
