"""Thread pools of the blocking API: run the blocking functions of a user for the event loop. A driver."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from busway.common.checks import check_callable

_OVER: Final = object()


def in_threads(
    name: str, function: Callable[[Any], object] | None, concurrency: int
) -> tuple[Callable[[Any], object] | None, ThreadPoolExecutor | None]:
    """Wrap a function that may block into one that the loop can call, with its pool. Async functions need no pool."""
    check_callable(name, function)
    if function is None or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return function, None
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix=f"busway-{name}")
    if inspect.isgeneratorfunction(function):
        return lambda argument: _iterated(pool, function(argument)), pool
    return lambda argument: asyncio.get_running_loop().run_in_executor(pool, function, argument), pool


async def _iterated(pool: ThreadPoolExecutor, items: Generator[object, Any, Any]) -> AsyncGenerator[object, None]:
    """The items of a generator that runs in the pool."""
    loop = asyncio.get_running_loop()
    try:
        while (item := await loop.run_in_executor(pool, next, items, _OVER)) is not _OVER:
            yield item
    finally:
        with suppress(RuntimeError):  # the pool has been shut down
            pool.submit(items.close)
