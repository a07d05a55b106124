"""Tasks that a subscription or service owns: how they begin, and their end by themselves in time, else by cancelling."""

import asyncio
import logging
import sys
from typing import Any, Final

log = logging.getLogger("busway.client")

EAGER: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}
"""Where tasks can start at once, a function that doesn't wait answers without a turn of the loop."""
_AFTER_CANCEL: Final = 1.0


async def finish(others: "set[asyncio.Task[None]]", seconds: float, what: str) -> None:
    """Wait for tasks within a time, then cancel those that are left."""
    if not others:
        return
    try:
        _, late = await asyncio.wait(others, timeout=seconds)
    except asyncio.CancelledError:
        for task in others:
            task.cancel()
        raise
    if late:
        log.warning("%s: %d of %d tasks were cancelled after %g s", what, len(late), len(others), seconds)
        for task in late:
            task.cancel()
        await asyncio.wait(late, timeout=_AFTER_CANCEL)
