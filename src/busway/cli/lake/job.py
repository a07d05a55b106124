"""What the verbs of `busway lake` share: where messages are, which Spark does the work, and how it is started and ends.

Nothing heavy is imported before a verb runs.
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
_WRONG: Final = ("PARSE_", "UNRESOLVED_", "TABLE_OR_VIEW_NOT_FOUND", "DATATYPE_MISMATCH", "INVALID_")
"""What Spark calls mistakes of a query."""


def _flag(*names: str, help: str, **more: Any) -> Any:  # noqa: A002 - typer's own word
    variable = "BUSWAY_LAKE_" + names[0].lstrip("-").replace("-", "_").upper()
    return typer.Option(*names, help=help, envvar=variable, rich_help_panel=_PANEL, **more)


Url = Annotated[
    list[str] | None,
    typer.Option(
        "--url",
        help="Address of a broker, repeatable; all of them are read.",
        envvar="BUSWAY_URL",
        rich_help_panel="Connection",
        metavar="ADDRESS",
        show_default=DEFAULT_URL,
    ),
]
Place = Annotated[
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
    _flag("--master", help="Which Spark: local[2], spark://host:7077, ...", show_default="local[*]", metavar="MASTER"),
]
Conf = Annotated[
    list[str] | None,
    _flag("--conf", help="A setting of Spark, repeatable.", metavar="KEY=VALUE", show_default=False),
]
Debug = Annotated[bool, _flag("--debug", help="Show the whole log of Spark and whole errors.")]
Quiet = Annotated[bool, _flag("--quiet", "-q", help="Print no notes and no progress on stderr, only errors.")]


@dataclass(frozen=True, slots=True)
class Job:
    """Where the messages are, and how Spark is to run; run through checked() first."""

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
            raise typer.BadParameter("--key needs --cert: a key proves nothing without its certificate")
        if self.path and self.url and self.url != os.environ.get("BUSWAY_URL", "").split():
            raise typer.BadParameter("give either --url or --path: a bus, or the folder of one")
        try:
            for url in self.url or ():
                parse(values.connect_address(url))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        for one in self.path or ():
            if not Path(one).is_dir():
                raise typer.BadParameter(f"--path: there is no folder {one!r}")
        for one in self.conf or ():
            if "=" not in one:
                raise typer.BadParameter(f"--conf: {one!r} is no setting: write key=value")
        return self

    @property
    def settings(self) -> dict[str, str]:
        """Those of --conf."""
        return {key: value for key, _, value in (one.partition("=") for one in self.conf or ())}

    @property
    def placed(self) -> bool:
        """Whether it was said where live messages are; else it is the default."""
        return bool(self.url or self.path)

    @property
    def options(self) -> dict[str, str]:
        """Where to read, as options of the source; those with a url are right for the sink, too."""
        if self.path:
            return {"path": json.dumps([str(Path(one).absolute()) for one in self.path])}
        urls = [values.connect_address(url) for url in self.url or ()] or [DEFAULT_URL]
        made = {"url": ",".join(urls)}
        for name, file in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if file:
                made[name] = str(Path(file).absolute())
        return made

    def run(
        self, work: "Callable[[SparkSession, Bar], None]", *, hint: "Callable[[Failure], str] | None" = None
    ) -> None:
        """Do it in a Spark session, with a bar that follows its jobs; errors end in one line and an exit code.

        `hint` may say what to do about a failure.
        """

        def start() -> None:
            with self.bar() as bar, self.session(bar) as spark:
                work(spark, bar)

        self.guard(start, hint=hint)

    def bar(self) -> Bar:
        return Bar(shown=terminal.notes.is_terminal and not self.quiet)

    @contextlib.contextmanager
    def session(self, bar: Bar) -> "Iterator[SparkSession]":
        """The session of this process; one that is made is ended, too."""
        from busway.spark.runtime.session import require, session

        require()
        os.environ["TZ"] = "UTC"  # PySpark gives times in the zone of this process, without saying so
        time.tzset()
        with tempfile.TemporaryDirectory(prefix="busway-") as folder, contextlib.ExitStack() as stack:
            log, conf = Path(folder) / "spark.log", self.settings
            if ours := _active() is None:
                bar.say("starting Spark")
                conf = {"spark.sql.warehouse.dir": f"{folder}/tables"} | conf
            try:
                spark = session(self.master, conf=conf, log=None if self.debug else log)
            except Exception:
                if log.exists():
                    sys.stderr.write(log.read_text(errors="replace"))
                raise
            if ours:
                stack.callback(spark.stop)
            _hush(shown=self.debug)
            bar.follow(spark)
            stack.callback(bar.close)
            yield spark

    def guard(self, work: Callable[[], None], *, hint: "Callable[[Failure], str] | None" = None) -> None:
        """Call it, and turn what it raises into one line on stderr and an exit code. `hint`: what to do about a failure."""
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
        except Exception as error:  # noqa: BLE001 - told, whatever it is
            if self.debug:
                traceback.print_exc()
            self._fail(error, hint)

    def _fail(self, error: Exception, hint: "Callable[[Failure], str] | None") -> None:
        from busway.spark.errors import explain

        failure = explain(error)
        what = (hint(failure) if hint else "") or (advice(failure.own) if failure.own else "")
        if not what and not self.debug and not isinstance(error, BusError | OSError | ValueError):
            what = "" if failure.condition else "--debug shows more"
        print(f"busway: {failure.told} ({what})" if what else f"busway: {failure.told}", file=sys.stderr)
        if failure.own is not None:
            raise typer.Exit(terminal.exit_code(failure.own)) from None
        raise typer.Exit(terminal.REJECTED if failure.condition.startswith(_WRONG) else terminal.ERROR) from None


def _active() -> "SparkSession | None":
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _hush(*, shown: bool) -> None:
    """PySpark logs errors that it raises, too: once is enough."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).addFilter(lambda _record: shown)


class Ending:
    """SIGINT and SIGTERM as something a verb looks at between two rounds; a second one ends it at once.

    To be entered after Spark has started, which takes SIGINT for itself.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._former: dict[int, Any] = {}

    @property
    def event(self) -> threading.Event:
        """Is set when it was asked for."""
        return self._asked

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Whether it was asked for within so many seconds."""
        return self._asked.wait(seconds)

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._former[number] = signal.signal(number, self._came)
        return self

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)

    def _came(self, _number: int, _frame: object) -> None:
        if self._asked.is_set():
            raise KeyboardInterrupt
        self._asked.set()


_FLAGS: Final[dict[str, tuple[Any, Any]]] = {
    "url": (Url, None),
    "path": (Place, None),
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
    """Give a verb whose first parameter is a Job the flags of one."""
    return _flagged(verb, tuple(_FLAGS))


def lake_job(verb: Callable[..., None]) -> Callable[..., None]:
    """The same for one that needs a lake and Spark, but no bus."""
    return _flagged(verb, ("lake", "master", "conf", "debug", "quiet"))


def plain_job(verb: Callable[..., None]) -> Callable[..., None]:
    """The same for one that needs neither."""
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
