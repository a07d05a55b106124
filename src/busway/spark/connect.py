"""Connections of Spark to a bus: retries for the time of the option timeout while a broker restarts.

The endpoints and the sink call it.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from busway import sync
from busway.client.bus import RECONNECT
from busway.errors import Code, ConnectFailed, Disconnected
from busway.settings import TLS, Identity
from busway.spark.options import Options
from busway.sync.bus import Bus

PAUSE: Final = 0.2
"""Seconds between attempts."""
_REFUSED: Final = {Code.SESSION_TAKEN, Code.SESSION_SECRET, Code.UNAUTHORIZED, Code.FORBIDDEN, Code.VERSION}
"""Codes that a retry does not change, because the broker has rejected the client."""

T = TypeVar("T")


def connected(
    url: str,
    options: Options,
    *,
    name: str = "",
    identity: Identity | None = None,
    reconnect: Sequence[float] | None = RECONNECT,
) -> Bus:
    """Return a connected client of the bus. Raises ConnectFailed."""
    files = options.tls
    tls = TLS(cert=files.get("cert"), key=files.get("key"), ca=files.get("ca")) if files else None
    until = time.monotonic() + options.timeout
    while True:
        left = max(until - time.monotonic(), 0.1)
        try:
            return sync.connect(url, name=name, identity=identity, timeout=left, tls=tls, reconnect=reconnect)
        except ConnectFailed as error:
            if error.code in _REFUSED or time.monotonic() + PAUSE > until:
                raise
        time.sleep(PAUSE)


def retry_disconnected(url: str, timeout: float, work: Callable[[], T]) -> T:
    """Call `work`, and retry it until the client has reconnected. Raises ConnectionError after `timeout`."""
    until = time.monotonic() + timeout
    while True:
        try:
            return work()
        except Disconnected as error:
            if time.monotonic() + PAUSE > until:
                raise ConnectionError(
                    f"{url}: the connection was lost and not restored within {timeout:g} s; raise the option timeout"
                ) from error
        time.sleep(PAUSE)
