"""What all tests share: event loops, certificates, a server with clients."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import hypothesis
import pytest

from tests.support.net import Certificates, Net

try:
    import uvloop
except ImportError:
    uvloop = None  # type: ignore[assignment]

hypothesis.settings.register_profile("busway", deadline=None, print_blob=True)
hypothesis.settings.load_profile("busway")

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
if uvloop is not None:
    LOOPS["uvloop"] = uvloop.new_event_loop


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], object]]:
    """The loop that `busway.run` takes; the conformance suite says itself that it wants both."""
    del config
    if item.get_closest_marker("both_loops"):
        return LOOPS
    return {"loop": LOOPS.get("uvloop", LOOPS["asyncio"])}


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
async def net(tmp_path: Path, certificates: Certificates) -> AsyncIterator[Net]:
    """A server and its clients over TCP, closed in the end."""
    async with Net("tcp", tmp_path, certificates) as net:
        yield net
