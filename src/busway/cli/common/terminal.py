"""Output and exit codes of verbs: data goes to stdout, notes go to stderr, an error becomes one line and an exit code.

Every verb runs its coroutine with run(). Only this module and busway.cli.lake.job print errors and choose exit codes.
"""

import asyncio
import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self

import msgspec
import typer
from rich.console import Console

import busway
from busway import errors
from busway.cli.common.advice import advice

OK: Final = 0
ERROR: Final = 1
USAGE: Final = 2
TIMEOUT: Final = 3
NOBODY: Final = 4
REJECTED: Final = 5
FOUND: Final = 6
"""`busway lake audit` found problems."""
INTERRUPTED: Final = 130

out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 1000)
"""Tables and coloured lines on stdout. Lines are not wrapped if stdout is not a terminal."""
notes = Console(stderr=True, highlight=False, soft_wrap=True)
"""Notes, log lines and progress bars on stderr."""


class Ended(Exception):  # noqa: N818 - not an error: the verb has ended with this exit code
    """Raised by a verb to end with this exit code. The text, if any, is printed on stderr."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def note(text: str) -> None:
    """Print a line on stderr."""
    notes.print(text, markup=False, style="dim" if notes.is_terminal else None)


def data(payload: bytes) -> None:
    """Write bytes to stdout and flush them."""
    sys.stdout.buffer.write(payload)
    sys.stdout.buffer.flush()


async def stream(payload: bytes) -> None:
    """Write bytes to stdout without blocking the event loop: a reader may pause (`| less`), and heartbeats must go on.

    A daemon thread writes them without Python's buffers, so that an interrupt waits for neither.
    """
    loop = asyncio.get_running_loop()
    written: asyncio.Future[None] = loop.create_future()

    def write() -> None:
        error: OSError | None = None
        try:
            rest = memoryview(payload)
            while rest:
                rest = rest[os.write(sys.stdout.fileno(), rest) :]
        except OSError as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(_finish, written, error)

    if len(payload) <= select.PIPE_BUF and select.select([], [sys.stdout], [], 0)[1]:
        write()  # the pipe has room
    else:
        threading.Thread(target=write, daemon=True, name="busway-output").start()
    await written


def _finish(future: "asyncio.Future[None]", error: OSError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def record(value: object) -> None:
    """Write one JSON object as a line to stdout."""
    data(msgspec.json.encode(value, enc_hook=str) + b"\n")


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error."""
    match error:
        case errors.InvalidTopic() | errors.InvalidFields() | errors.InvalidRule():
            return USAGE
        case errors.Timeout():
            return TIMEOUT
        case errors.NoResponders():
            return NOBODY
        case errors.Rejected():
            return REJECTED
        case _:
            return ERROR


def run(verb: Callable[[], Coroutine[Any, Any, None]], *, timed: bool = False) -> None:
    """Run a verb, and exit with its code. `timed`: the verb has --timeout."""
    try:
        busway.run(_one_error(verb()))
    except Ended as ended:
        if ended.text:
            note(ended.text)
        raise typer.Exit(ended.code) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        silence_stdout()
        raise typer.Exit(OK) from None
    except (errors.BusError, OSError, ValueError) as error:
        fail(error, timed=timed)


async def _one_error(work: Coroutine[Any, Any, None]) -> None:
    """Replace the errors of a task group by the first of them, because a verb prints one line."""
    try:
        await work
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def fail(error: Exception, *, timed: bool) -> None:
    """Print an error with its advice on one line of stderr, and exit with its code."""
    text = f"busway: {_one_line(error)}"
    hint = advice(error, timed=timed)
    print(f"{text} ({hint})" if hint else text, file=sys.stderr)
    raise typer.Exit(exit_code(error)) from None


def _one_line(error: BaseException) -> str:
    name = "" if isinstance(error, errors.BusError | ValueError) else f"{type(error).__name__}: "
    return name + (" ".join(str(error).split()) or type(error).__name__)


def silence_stdout() -> None:
    """Redirect stdout to the null device, so that the interpreter does not flush into a broken pipe."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Signals:
    """Events for SIGINT and SIGTERM: the first signal asks a verb to end, the second one ends it at once."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.interrupted = False

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._received, number)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    def _received(self, number: int) -> None:
        self.interrupted = self.interrupted or number == signal.SIGINT
        (self.second if self.first.is_set() else self.first).set()
