"""Ways of a message that are timed in turn, one message after the other: a slow moment of the machine hits all alike."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter_ns

from benchmarks.peers.process import PATIENCE

Trip = Callable[[], Awaitable[object]]


async def p50s(ways: Mapping[str, Trip], messages: int, rounds: int) -> list[dict[str, float]]:
    """The p50 of each way in each round, in microseconds."""
    for trip in ways.values():
        await _p50(trip, max(messages // 4, 10))  # who is known and where, and what the processor remembers
    return [{name: await _p50(trip, messages) for name, trip in ways.items()} for _ in range(rounds)]


async def _p50(trip: Trip, messages: int) -> float:
    times = []
    for _ in range(messages):
        begin = perf_counter_ns()
        async with asyncio.timeout(PATIENCE):
            await trip()
        times.append(perf_counter_ns() - begin)
    return sorted(times)[messages // 2] / 1000
