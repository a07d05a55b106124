"""Log lines of the commands on standard error: text or JSON, each with its time, level and logger.

Only begin() sets up logging in the command line; every verb calls it. The library itself sets up nothing.
"""

import logging
import os
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec
from rich.text import Text

from busway.cli.common import terminal
from busway.cli.common.values import one_line

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
Format: TypeAlias = Literal["text", "json"]

LEVEL: Final = "BUSWAY_LOG_LEVEL"
FORMAT: Final = "BUSWAY_LOG_FORMAT"
"""The variables that the flags of `busway serve` and the client commands read."""
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_FORMATS: Final = ("text", "json")
_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every log record has. All other attributes are structured fields."""
_LINKS: Final = "busway.cluster.links"


def begin(level: str | None = None, form: str | None = None, *, quiet: bool = False) -> None:
    """Write the log of this process to standard error. Raises ValueError for an unknown level or format.

    Without a level it is `error` if `quiet`, `info` for JSON, else `warning` with the links of the cluster at `info`.
    """
    form = _known(form or os.environ.get(FORMAT) or "text", _FORMATS, "log format")
    named = level or os.environ.get(LEVEL)
    chosen = _known(named, _LEVELS, "log level") if named else None
    default = "error" if quiet else "info" if form == "json" else "warning"
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(handler)
    root.addHandler(_Handler(_Json() if form == "json" else _Lines()))
    logging.getLogger("busway").setLevel(_LEVELS[chosen or default])
    links = logging.INFO if chosen is None and not quiet else logging.NOTSET
    logging.getLogger(_LINKS).setLevel(links)


def without_missed() -> None:
    """Drop the log lines about missed messages, for a command that reports missed messages itself."""
    logging.getLogger("busway.client").addFilter(lambda record: not hasattr(record, "missed"))


def _known(value: str, known: Any, what: str) -> str:
    if value not in known:
        raise ValueError(f"{value!r} is not a {what}: choose {', '.join(known)}")
    return value


class _Handler(logging.Handler):
    """Writes log lines to the console of the progress bars, so that neither overwrites the other."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            terminal.notes.print(Text(self.format(record)), soft_wrap=True)
        except Exception:  # noqa: BLE001, as logging's own handlers do
            self.handleError(record)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Lines(logging.Formatter):
    """`TIME LEVEL LOGGER: MESSAGE` on one line. A traceback follows on its own lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, named by logging
        return f"{_time(record)} {record.levelname} {record.name}: {one_line(record.message)}"


class _Json(logging.Formatter):
    """One JSON object per line. A traceback is its member `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _PLAIN and name not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()
