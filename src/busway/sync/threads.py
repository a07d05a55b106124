"""Functions of the blocking face's user, which may block, made into ones that the loop can call. A driver."""

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
    """A function that may block, made into one for the loop; what is asynchronous runs on the loop as it is."""
    check_callable(name, function)
    if function is None or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return function, None
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix=f"busway-{name}")
    if inspect.isgeneratorfunction(function):
        return lambda argument: _pulled(pool, function(argument)), pool
    return lambda argument: asyncio.get_running_loop().run_in_executor(pool, function, argument), pool


async def _pulled(pool: ThreadPoolExecutor, items: Generator[object, Any, Any]) -> AsyncGenerator[object, None]:
    """The items of a generator that runs in threads."""
    loop = asyncio.get_running_loop()
    try:
        while (item := await loop.run_in_executor(pool, next, items, _OVER)) is not _OVER:
            yield item
    finally:
        with suppress(RuntimeError):  # the threads are gone already
            pool.submit(items.close)
