"""A headless Chromium for the tests of the console's screens."""

import pytest_asyncio

from tests.support import console


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    async with console.browser() as found:
        yield found
