"""Fixtures for pytest with pytest-asyncio; switched on by `pytest_plugins = ["busway.testing.plugin"]`.

It is no entry point on purpose: importing busway at the start of every pytest run would spoil the coverage and the import
time of projects that only happen to have it installed.
"""

from collections.abc import AsyncIterator

import pytest_asyncio

import busway
from busway.testing.bus import bus as private_bus


@pytest_asyncio.fixture
async def bus() -> AsyncIterator[busway.Bus]:
    """A client of a server of its own, both in this process."""
    async with private_bus() as client:
        yield client
