"""Where output goes and how a verb ends: data to stdout, notes to stderr, errors to one line and an exit code.

Every verb runs its coroutine through run(); nothing else of the command line prints errors or chooses exit codes.
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
"""An audit has found something."""
INTERRUPTED: Final = 130

out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 1000)
"""For people: tables and coloured lines on stdout; whole lines where no screen is."""
notes = Console(stderr=True, highlight=False, soft_wrap=True)


class Ended(Exception):  # noqa: N818 - not an error: a verb has come to its end with this exit code
    """Raised by a verb that ends with an exit code of its own; the text, if any, goes to stderr."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def note(text: str) -> None:
    """A line for people, on stderr."""
    notes.print(text, markup=False, style="dim" if notes.is_terminal else None)


def data(payload: bytes) -> None:
    """Bytes to stdout, at once."""
    sys.stdout.buffer.write(payload)
    sys.stdout.buffer.flush()


async def stream(payload: bytes) -> None:
    """As data(), for verbs that go on: a reader that pauses (`| less`) must not keep the connection from its heartbeats.

    Written by a daemon thread and past Python's buffers, so that an interrupt needs to wait for neither.
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
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(_finish, written, error)

    if len(payload) <= select.PIPE_BUF and select.select([], [sys.stdout], [], 0)[1]:
        write()  # there is room for it
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
    """One JSON object on a line of its own, to stdout."""
    data(msgspec.json.encode(value, enc_hook=str) + b"\n")


def exit_code(error: BaseException) -> int:
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
    """Run a verb to its end and leave with its exit code. `timed`: it has --timeout."""
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
    """A task group's errors as the one that came first: a verb ends with one line."""
    try:
        await work
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def fail(error: Exception, *, timed: bool) -> None:
    text = f"busway: {_one_line(error)}"
    hint = advice(error, timed=timed)
    print(f"{text} ({hint})" if hint else text, file=sys.stderr)
    raise typer.Exit(exit_code(error)) from None


def _one_line(error: BaseException) -> str:
    name = "" if isinstance(error, errors.BusError | ValueError) else f"{type(error).__name__}: "
    return name + (" ".join(str(error).split()) or type(error).__name__)


def silence_stdout() -> None:
    """Whoever read our output has gone: leave nothing for the interpreter to flush into the broken pipe."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Signals:
    """SIGINT and SIGTERM as something a verb waits for: the first asks to end, the second makes it end now."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.interrupted = False

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._came, number)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    def _came(self, number: int) -> None:
        self.interrupted = self.interrupted or number == signal.SIGINT
        (self.second if self.first.is_set() else self.first).set()
