"""Errors of Spark: explains them in one line, by Busway's own error from a worker or by Spark's first sentence.

The command line and the pipelines call explain().
"""

import re
from typing import Final, NamedTuple

from busway import errors

_TRACEBACK: Final = "Traceback (most recent call last):"
_RAISED: Final = re.compile(r"^(?P<where>(?:[A-Za-z_]\w*\.)*)(?P<kind>[A-Za-z_]\w*)(?:: (?P<text>.*))?$", re.DOTALL)
_AFTER: Final = re.compile(r"\n *(?:SQLSTATE: |===|\tat |\n)|\n\s+at |\Z")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+")
_CONDITION: Final = re.compile(r"^\[([A-Z0-9_.]+)\] ")
_PLACE: Final = re.compile(r"line (\d+),? (pos|position) (\d+)")
_STREAM: Final = re.compile(r"^\[STREAM_FAILED\] Query .*? terminated with exception: ", re.DOTALL)
_AWAITED: Final = "Exception thrown in awaitResult"
_CALLED: Final = re.compile(r"^An error occurred while calling .*?\n: ", re.DOTALL)
_TASK: Final = re.compile(r"^Job aborted due to stage failure: .*?\(TID \d+\) \([^)]*\): ", re.DOTALL)
_CLASS: Final = re.compile(r"^(?:[a-z]\w*\.)+\w*(?:Exception|Error)(?:: |\n)")
_CAUSE: Final = re.compile(r"(?:^|\nCaused by: )(?:[a-z]\w*\.)+[\w$]*(?:Exception|Error): ([^\n]+)")
_PLAIN_KINDS: Final = {"Exception", "RuntimeError", "ValueError", "OptionError", "DataLoss"}
"""Classes of errors whose name adds nothing to their text."""


class Failure(NamedTuple):
    """The explanation of an error."""

    text: str
    condition: str = ""
    """Spark's name of the error, such as PARSE_SYNTAX_ERROR."""
    line: int = 0
    """The line in the text of the query; 0 if it is unknown."""
    column: int = 0
    """The column in that line, from 1."""
    own: errors.BusError | None = None
    """The error of Busway, if a worker or the driver raised one."""

    @property
    def message(self) -> str:
        """The text with line and column, if they are known."""
        return f"{self.text} (line {self.line}, column {self.column})" if self.line else self.text


def explain(error: BaseException) -> Failure:
    """Return the explanation of an error that came through Spark."""
    if isinstance(error, errors.BusError):
        return Failure(str(error), own=error)
    whole = _STREAM.sub("", _CALLED.sub("", str(error).strip()))
    condition = _found(_CONDITION, whole) or getattr(error, "getCondition", lambda: None)() or ""
    if _TRACEBACK in whole:
        return _raised(whole.rpartition(_TRACEBACK)[2], condition)
    if isinstance(error, ConnectionError):
        return Failure(_one_line(whole), own=errors.ConnectFailed(_one_line(whole)))
    if isinstance(error, OSError):
        return Failure(f"{type(error).__name__}: {_one_line(whole)}")
    at = _PLACE.search(whole)
    whole = _cause(whole)
    condition = condition or _found(_CONDITION, whole)
    # Spark counts `pos` from 0 and `position` from 1.
    line, column = (int(at[1]), int(at[3]) + (at[2] == "pos")) if at else (0, 0)
    return Failure(_shortened(whole) or type(error).__name__, condition, line, column)


def _raised(traceback: str, condition: str) -> Failure:
    """Explain the error at the end of a traceback: its first lines without indentation."""
    lines = traceback.splitlines(keepends=True)
    begin = next((index for index, text in enumerate(lines) if text.strip() and not text[0].isspace()), len(lines))
    rest = "".join(lines[begin:])
    end = _AFTER.search(rest)
    line = _STATE.sub("", rest[: end.start()] if end else rest).strip()
    found = _RAISED.match(line)
    if found is None:
        return Failure(_one_line(line), condition)
    text = _one_line(found["text"] or "")
    own = _own(found["where"], found["kind"], text)
    if own is not None or found["where"].startswith("busway.") or (found["kind"] in _PLAIN_KINDS and text):
        return Failure(text or found["kind"], condition, own=own)
    return Failure(_one_line(line.removeprefix(found["where"])), condition)


def _own(where: str, kind: str, text: str) -> errors.BusError | None:
    if kind == "ConnectionError":
        return errors.ConnectFailed(text)
    made = getattr(errors, kind, None)
    if where != "busway.errors." or not (isinstance(made, type) and issubclass(made, errors.BusError)):
        return None
    return errors.BusError(text) if made is errors.PayloadError else made(text)


def _cause(whole: str) -> str:
    """Return the first cause that has a condition of Spark, else the last cause: the others only name callers."""
    causes = _CAUSE.findall(whole)
    named = next((cause for cause in causes if _CONDITION.match(cause)), None)
    if named is not None and not _CONDITION.match(whole):
        return str(named)
    return str(causes[-1]) if causes and _AWAITED in whole.partition("\n")[0] else whole


def _shortened(whole: str) -> str:
    text = _CLASS.sub("", whole)
    text = _TASK.sub("", text)
    text = _CLASS.sub("", text)
    text = _CONDITION.sub("", text.strip())
    # Only the first sentence: the search path, the plan and the stack follow it.
    text = re.split(r"\n|\s*SQLSTATE: ", text, maxsplit=1)[0]
    return _one_line(text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _found(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(_CLASS.sub("", text))
    return found[1] if found else ""
