"""Registry of additional transports by address scheme, such as `sim://HOST:PORT` of the simulated network.

`listen` and `dial` look up schemes here that are not built in.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from busway.transport.address import Address

Factory = Callable[[], asyncio.BufferedProtocol]


class Scheme(Protocol):
    """A transport for an address scheme. It raises OSError, as sockets do."""

    def listen(self, address: "Address", factory: Factory) -> tuple[int, Callable[[], None]]:
        """Create a protocol for each connection at the address. Return the port and a function that stops listening."""

    async def dial(self, address: "Address", factory: Factory) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect a new protocol to the server at the address."""


carriers: dict[str, Scheme] = {}
"""The additional transports, by scheme."""
