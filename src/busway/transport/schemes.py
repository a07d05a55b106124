"""Ways for bytes that are put in from outside, by the scheme of their addresses: a simulated network has `sim://HOST:PORT`.

Neither broker nor client know of them; they are used as the others are.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from busway.transport.address import Address

Factory = Callable[[], asyncio.BufferedProtocol]


class Scheme(Protocol):
    """What listens and dials. Errors are OSErrors, as those of sockets are."""

    def listen(self, address: "Address", factory: Factory) -> tuple[int, Callable[[], None]]:
        """Make a protocol for every connection that arrives there: the port, and what ends it."""

    async def dial(self, address: "Address", factory: Factory) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect a new protocol to whoever listens there."""


carriers: dict[str, Scheme] = {}
"""By scheme."""
