"""Shell commands of `--exec` and `--ask`: each gets the payload on stdin and the topic in $BUSWAY_TOPIC."""

import asyncio
import contextlib
import os
import signal
import tempfile

import busway
from busway.message import Message


class Command:
    """Runs a shell command for each message, in its own process group, and returns its output. Raises HandlerError."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._running: set[int] = set()

    async def __call__(self, message: Message) -> bytes:
        # A file instead of a pipe: a command may end without reading its input, and that is no error.
        with tempfile.TemporaryFile() as payload:
            payload.write(message.payload)
            payload.seek(0)
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_shell(
                    self._command,
                    stdin=payload,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=os.environ | {"BUSWAY_TOPIC": message.topic},
                    start_new_session=True,
                )
            )
            try:
                process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                starting.add_done_callback(_end_started)
                raise
        self._running.add(process.pid)
        try:
            output, errors = await process.communicate()
        except asyncio.CancelledError:  # the time to drain or to answer --ask is over
            _end_group(process.pid, signal.SIGKILL)
            raise
        finally:
            self._running.discard(process.pid)
        if process.returncode:
            last = errors.decode(errors="replace").strip().rpartition("\n")[2]
            status = f"exit status {process.returncode}" if process.returncode > 0 else f"signal {-process.returncode}"
            raise busway.HandlerError(f"{status}: {last}" if last else status)
        return output

    @property
    def running(self) -> bool:
        """True while a command runs."""
        return bool(self._running)

    def interrupt(self) -> None:
        """Send SIGTERM to the process group of every command that runs. Ctrl-C at the terminal does not reach them."""
        for group in self._running:
            _end_group(group, signal.SIGTERM)


def _end_started(starting: "asyncio.Future[asyncio.subprocess.Process]") -> None:
    """End a command that was cancelled while it started."""
    if not starting.cancelled() and starting.exception() is None:
        _end_group(starting.result().pid, signal.SIGKILL)


def _end_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # the group has just ended
        os.killpg(group, number)
