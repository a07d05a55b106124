"""The suite runs over memory and TCP; with `make test-all` over every transport, and over TCP on both event loops.

Tests in which much depends on how a connection is read and written (`both_loops(every=True)`) run over every transport and on
both loops each time.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.net import KINDS, Certificates, Net
from tests.support.strength import ALL

USUAL = {"memory", "tcp"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A socket is a socket to a loop, whatever its family, so that asyncio's gets those of TCP."""
    items[:] = [item for item in items if not _seen_elsewhere(item)]


def _seen_elsewhere(item: pytest.Item) -> bool:
    marker, case = item.get_closest_marker("both_loops"), getattr(item, "callspec", None)
    if marker is None or case is None or marker.kwargs.get("every") or Path(__file__).parent not in item.path.parents:
        return False
    loop, kind = case.id.split("-"), case.params.get("net", "tcp")
    if not ALL and ("asyncio" in loop or kind not in USUAL):
        return True
    return "asyncio" in loop and kind != "tcp"


@pytest.fixture(params=KINDS)
async def net(request: pytest.FixtureRequest, tmp_path: Path, certificates: Certificates) -> AsyncIterator[Net]:
    async with Net(request.param, tmp_path, certificates) as net:
        yield net
