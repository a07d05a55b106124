"""Client of the files `channels` and `fusebus` of a mount: publish, subscribe and read; user programs call it.

It only opens, reads, writes and polls files, so it works in any program, without a connection or an event loop.
"""

import errno
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from busway._core import Selection
from busway.common.checks import check_timeout
from busway.common.durations import Duration
from busway.errors import BusError
from busway.fuse import format as form
from busway.fuse.format import Meta

_READ: Final = 64 * 1024
_LONGEST: Final = 1 << 30


class Received(NamedTuple):
    """A message that a client has read."""

    meta: Meta
    channel: str
    data: bytes


Handler = Callable[[Received], object]


class _Subscription(NamedTuple):
    pattern: str
    selection: Selection | None
    handler: Handler | None

    def takes(self, channel: str) -> bool:
        return channel == self.pattern or (self.selection is not None and self.selection.covers(channel))


class Client:
    """A client of a mount, with its own open file `fusebus`. It is not thread-safe.

    ::

        with busway.fuse.Client("/run/bus") as client:
            client.subscribe("CHANNEL_.*", lambda message: print(message.channel, message.data))
            client.publish("CHANNEL_A", b"Hello World!")
            client.handle()
    """

    def __init__(self, folder: str | os.PathLike[str], *, buffer: int = _READ) -> None:
        self.folder = Path(folder)
        self._buffer = buffer
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._subscriptions: dict[int, _Subscription] = {}
        self._bus = os.open(self.folder / "fusebus", os.O_RDWR | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Return the file descriptor for select, poll and epoll. It is readable when handle() has a message."""
        return self._bus

    # Channels.

    def channel(self, name: str) -> int:
        """Return the number of a channel, and register a new one. Raises ValueError if the name is not valid."""
        number = self._numbers.get(name)
        if number is None:
            if not name or "\n" in name:
                raise ValueError(f"{name!r} can't be the name of a channel: a name is one line and not empty")
            channels = os.open(self.folder / "channels", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                os.write(channels, name.encode() + b"\n")
            finally:
                os.close(channels)
            self._read_names()
            number = self._numbers[name]
        return number

    def channels(self) -> list[str]:
        """Return the names of all channels. The number of a channel is its index."""
        self._read_names()
        return list(self._names)

    def name(self, channel: int) -> str:
        """Return the name of a channel. Raises KeyError for an unknown number."""
        if channel >= len(self._names):
            self._read_names()
        try:
            return self._names[channel]
        except IndexError:
            raise KeyError(channel) from None

    def _read_names(self) -> None:
        self._names = (self.folder / "channels").read_text("utf-8").split("\n")[:-1]
        self._numbers = {name: number for number, name in enumerate(self._names)}

    # Messages.

    def publish(self, channel: str | int, payload: bytes | str) -> None:
        """Publish on a channel, by its name or its number."""
        number = self.channel(channel) if isinstance(channel, str) else channel
        data = form.message(number, payload.encode() if isinstance(payload, str) else payload)
        if os.write(self._bus, data) < len(data):  # the mount accepted the beginning of a message that is too long
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))

    def subscribe(self, pattern: str, handler: Handler | None = None) -> int:
        """Subscribe to channels whose full name matches the regular expression. Return the subscription's number.

        Stored messages come first. Without a handler, only read() returns the messages.
        """
        try:
            selection = Selection("re:" + pattern)
        except BusError:
            selection = None  # it is the name of a channel, or the mount will refuse it
        # The mount returns the number as the length of the write, which can't exceed the length of the data.
        room = b"\0" * max(0, len(self._subscriptions) - len(pattern))
        number = os.write(self._bus, form.subscribe(pattern) + room)
        self._subscriptions[number] = _Subscription(pattern, selection, handler)
        return number

    def unsubscribe(self, number: int) -> None:
        """End a subscription."""
        os.write(self._bus, form.unsubscribe(number))
        self._subscriptions.pop(number, None)

    def ready(self, timeout: Duration | None = 0.0) -> bool:
        """Wait up to `timeout` seconds for a message. Return True if there is one. None waits without a limit."""
        limit = check_timeout("timeout", timeout)
        poll = select.poll()
        poll.register(self._bus, select.POLLIN)
        return bool(poll.poll(None if limit is None else limit * 1000))

    def read(self, timeout: Duration | None = None) -> list[Received]:
        """Return the next messages, as many as one read returns, or none if `timeout` seconds pass."""
        if timeout is not None and not self.ready(timeout):
            return []
        return [Received(meta, self.name(meta.channel), data) for meta, data in form.messages(self._read())]

    def _read(self) -> bytes:
        while True:
            try:
                data = os.read(self._bus, self._buffer)
            except OSError as error:
                if error.errno != errno.EMSGSIZE or self._buffer >= _LONGEST:
                    raise
                self._buffer *= 2  # the next message is longer
                continue
            # A very long message comes in several parts.
            while len(data) >= form.META.size and (left := _missing(data)):
                more = os.read(self._bus, left)
                if not more:
                    break
                data += more
            return data

    def handle(self, timeout: Duration | None = None) -> int:
        """Read once, and call the handlers of the matching subscriptions. Return the number of messages."""
        received = self.read(timeout)
        for message in received:
            for subscription in list(self._subscriptions.values()):
                if subscription.handler is not None and subscription.takes(message.channel):
                    subscription.handler(message)
        return len(received)

    def __iter__(self) -> Iterator[Received]:
        """Yield messages as they arrive, without an end."""
        while True:
            yield from self.read()

    # Lifecycle.

    def close(self) -> None:
        """Close the client and end all its subscriptions."""
        if self._bus >= 0:
            os.close(self._bus)
            self._bus = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _missing(data: bytes) -> int:
    """Return how many bytes of the last message and its padding are missing; 0 if only padding is missing."""
    at = 0
    while len(data) - at >= form.META.size:
        meta = form.Meta._make(form.META.unpack_from(data, at))
        at += form.META.size
        if len(data) - at < meta.size:
            return at + meta.stride - len(data)
        at += meta.stride
    return 0
