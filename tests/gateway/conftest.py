"""A server with its JSON door for each test."""

import pytest

from tests.support import door as doors


@pytest.fixture
async def door(tmp_path):
    async with doors.opened(tmp_path / "data") as opened:
        yield opened


@pytest.fixture(params=doors.FORMS)
def form(request):
    return request.param
