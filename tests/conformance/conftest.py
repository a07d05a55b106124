"""The suite runs unchanged over every transport, and over one of them on both event loops."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.net import KINDS, Certificates, Net


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A socket is a socket to a loop, whatever its family, so that asyncio's gets those of TCP. Where much depends on how a
    loop reads and writes (`both_loops(every=True)`), it gets all."""
    items[:] = [item for item in items if not _seen_elsewhere(item)]


def _seen_elsewhere(item: pytest.Item) -> bool:
    marker, case = item.get_closest_marker("both_loops"), getattr(item, "callspec", None)
    if marker is None or case is None or marker.kwargs.get("every") or Path(__file__).parent not in item.path.parents:
        return False
    return "asyncio" in case.id.split("-") and case.params.get("net", "tcp") != "tcp"


@pytest.fixture(params=KINDS)
async def net(request: pytest.FixtureRequest, tmp_path: Path, certificates: Certificates) -> AsyncIterator[Net]:
    async with Net(request.param, tmp_path, certificates) as net:
        yield net
