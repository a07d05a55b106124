"""A simulated loop and network for each test that asks for them."""

from collections.abc import Iterator

import pytest

from busway.testing.simulation.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with World("a test") as world:
        yield world
