"""Fixtures of all tests: event loops, certificates, a server with clients, and per process commands and PostgreSQL."""

import asyncio
import functools
import gc
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support.commands import Nursery
from tests.support.net import Certificates, Net
from tests.support.postgres import Postgres

try:
    import uvloop
except ImportError:
    uvloop = None  # type: ignore[assignment]

hypothesis.settings.register_profile("busway", deadline=None, print_blob=True)
hypothesis.settings.load_profile("busway")

LIMIT = 150.0
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
if uvloop is not None:
    LOOPS["uvloop"] = uvloop.new_event_loop


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], object]]:
    """The loop that `busway.run` takes; the conformance suite says itself that it wants both."""
    del config
    if item.get_closest_marker("both_loops"):
        return LOOPS
    return {"loop": LOOPS.get("uvloop", LOOPS["asyncio"])}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Every asynchronous test has a time limit of its own, below the runner's, which could only end the whole run."""
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        item.obj = limited(item.obj)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of several processes none is left with a long test in the end: those with the longest time limits come first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: -sum(marker.args[0] for marker in item.iter_markers("timeout")))


def pytest_collection_finish() -> None:
    """What was loaded and collected stays: no collection of garbage has to look at all of it again, ten thousand tests long."""
    gc.collect()
    gc.freeze()


def limited(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def run(*arguments: object, **keywords: object) -> None:
        async with asyncio.timeout(LIMIT):
            await test(*arguments, **keywords)

    return run


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """A command that runs in this process sets up logging; the next test has it as it was."""
    levels = {logger: logger.level for logger in map(logging.getLogger, ("busway", "busway.cluster.links"))}
    yield
    for logger, level in levels.items():
        logger.setLevel(level)
    root = logging.getLogger()
    for handler in [one for one in root.handlers if type(one).__module__ == "busway.cli.common.logs"]:
        root.removeHandler(handler)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
async def net(tmp_path: Path, certificates: Certificates) -> AsyncIterator[Net]:
    """A server and its clients over TCP, closed in the end."""
    async with Net("tcp", tmp_path, certificates) as net:
        yield net


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()


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
