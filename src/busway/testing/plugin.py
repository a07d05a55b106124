"""Fixtures for pytest with pytest-asyncio; a conftest enables them by `pytest_plugins = ["busway.testing.plugin"]`.

The plugin has no entry point, so that pytest does not import busway in projects that do not test with it.
"""

from collections.abc import AsyncIterator

import pytest_asyncio

import busway
from busway.testing.bus import bus as private_bus


@pytest_asyncio.fixture
async def bus() -> AsyncIterator[busway.Bus]:
    """A client of a private server in this process."""
    async with private_bus() as client:
        yield client
