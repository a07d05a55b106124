"""Stores of each kind, made anew for each test, and a PostgreSQL server that the tests of one process share."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from busway.broker.stores import Store
from tests.stores.kits import DatabaseKit, Kit, postgresql_kit, sqlite_kit
from tests.support.postgres import Postgres


@pytest.fixture(scope="session")
def _postgres() -> Iterator[Postgres]:
    server = Postgres()
    server.start()
    yield server
    server.remove()


@pytest.fixture
def postgres(_postgres: Postgres) -> Postgres:
    """It runs, whatever the test before has done to it."""
    if not _postgres.running:
        _postgres.start()
    return _postgres


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
