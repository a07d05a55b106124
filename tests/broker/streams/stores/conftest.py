"""Stores of each kind, made anew for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from busway.broker.streams.stores import Store
from tests.support.store_kits import DatabaseKit, Kit, postgresql_kit, sqlite_kit


def database_kit(kind: str, request: pytest.FixtureRequest, folder: Path) -> DatabaseKit:
    return sqlite_kit(folder) if kind == "sqlite" else postgresql_kit(request.getfixturevalue("postgres"))


@pytest.fixture(params=["sqlite", "postgresql"])
async def kit(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kit]:
    """Every kind of store."""
    made = database_kit(request.param, request, tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def store(kit: Kit) -> Store:
    return await kit.open()


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DatabaseKit]:
    """Every kind of database."""
    made = database_kit(request.param, request, tmp_path)
    yield made
    await made.close()
