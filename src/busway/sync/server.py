"""The blocking Server: its life. Its properties and counters are generated."""

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from busway.broker.server import Server as AsyncServer
from busway.client.bus import ClientOptions
from busway.common.durations import Duration
from busway.common.options import takes_options
from busway.sync.base import Opened
from busway.sync.bus import Bus
from busway.sync.generated.server import ServerStatus


class Server(ServerStatus, Opened[AsyncServer]):
    """A broker in the process's loop thread. It serves from its creation until stop() or the end of its `with`."""

    def __init__(self, make: Callable[[], AsyncServer]) -> None:
        async def started() -> AsyncServer:
            return await make().start()

        super().__init__(started)

    @takes_options(AsyncServer.connect)
    def connect(self, **options: Unpack[ClientOptions]) -> Bus:
        """A client of this broker, connected in memory."""
        return Bus(partial(self._inner.connect, **options))

    def start(self) -> Self:
        """Return this server, which already serves."""
        return self

    def serve_forever(self) -> None:
        """Return when the broker has been stopped. An interrupt stops it."""
        try:
            self._portal.call(self._inner.serve_forever)
        finally:
            self.stop()

    def stop(self, drain: Duration | None = None) -> None:
        """Accept no more clients, write all waiting output within `drain` seconds, and close."""
        self._end(lambda: self._inner.stop(drain))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
