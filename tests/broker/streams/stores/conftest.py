"""Stores of each kind, made anew for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from busway.broker.streams.stores import Store
from tests.support.store_kits import DatabaseKit, postgresql_kit, sqlite_kit


@pytest.fixture(params=["sqlite", "postgresql"])
async def kit(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DatabaseKit]:
    """A database of each kind."""
    made = sqlite_kit(tmp_path) if request.param == "sqlite" else postgresql_kit(request.getfixturevalue("postgres"))
    yield made
    await made.close()


@pytest.fixture
async def store(kit: DatabaseKit) -> Store:
    return await kit.open()
