"""A broker with an empty stream `orders` in a store of each kind."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.postgres import Postgres
from tests.support.relay import Relay
from tests.support.stream_kits import STORES, Place


def url_of(kind: str, request: pytest.FixtureRequest) -> str | None:
    if kind != "postgresql":
        return None
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.url(postgres.schema())


@pytest.fixture(params=STORES)
async def bus_with_stream(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with Place(request.param, tmp_path, url_of(request.param, request)) as place:
        await place.make()
        yield place


@pytest.fixture(params=STORES[1:])
async def lasting(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """Of the stores that outlive the broker."""
    async with Place(request.param, tmp_path, url_of(request.param, request)) as place:
        await place.make()
        yield place


@pytest.fixture
async def relay(postgres: Postgres) -> AsyncIterator[Relay]:
    async with Relay(postgres.port) as relay:
        yield relay


@pytest.fixture
async def far(postgres: Postgres, relay: Relay, tmp_path: Path) -> AsyncIterator[Place]:
    """A broker whose stream is in a PostgreSQL server that is reached through the relay."""
    url = postgres.url(postgres.schema(), port=relay.port)
    async with Place("postgresql", tmp_path, url) as place:
        await place.make()
        yield place
