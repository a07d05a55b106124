"""The suite runs unchanged over every transport."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.net import KINDS, Certificates, Net


@pytest.fixture(params=KINDS)
async def net(request: pytest.FixtureRequest, tmp_path: Path, certificates: Certificates) -> AsyncIterator[Net]:
    async with Net(request.param, tmp_path, certificates) as net:
        yield net
