"""Context managers that start a server on the memory transport with one or more clients; tests use them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import busway


@asynccontextmanager
async def bus(*, name: str = "test", settings: busway.Settings | None = None) -> AsyncIterator[busway.Bus]:
    """Start a private server with one client."""
    async with buses(1, name=name, settings=settings) as (only,):
        yield only


@asynccontextmanager
async def buses(
    count: int, *, name: str = "test", settings: busway.Settings | None = None
) -> AsyncIterator[list[busway.Bus]]:
    """Start a private server with several clients, named `name`, `name-2`, `name-3` and so on."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(busway.serve(settings=settings))
        names = [name if index == 0 else f"{name}-{index + 1}" for index in range(count)]
        yield [await stack.enter_async_context(server.connect(name=each)) for each in names]
