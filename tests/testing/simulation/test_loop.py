"""The loop of the simulation: time jumps, order is by time and then by turn, and nothing comes from outside."""

import asyncio
import socket
import threading
import time

import pytest

from busway.testing.simulation.loop import EPOCH, Stuck, VirtualLoop
from busway.testing.simulation.process import Process
from busway.testing.simulation.world import World


@pytest.fixture
def loop() -> VirtualLoop:
    return VirtualLoop()


def test_time_jumps_to_what_is_next(loop: VirtualLoop) -> None:
    async def main() -> float:
        await asyncio.sleep(1000.0)
        return loop.time()

    begin = time.monotonic()
    assert loop.run_until_complete(main()) == 1000.0
    assert time.monotonic() - begin < 1000


def test_callbacks_come_by_time_and_then_as_they_were_asked_for(loop: VirtualLoop) -> None:
    seen: list[str] = []

    async def main() -> None:
        for name, delay in (("c", 2.0), ("a", 1.0), ("d", 2.0), ("b", 1.0)):
            loop.call_later(delay, seen.append, name)
        gone = loop.call_later(1.5, seen.append, "cancelled")
        gone.cancel()
        await asyncio.sleep(3.0)

    loop.run_until_complete(main())
    assert seen == ["a", "b", "c", "d"]


def test_many_cancelled_timers_are_forgotten(loop: VirtualLoop) -> None:
    async def main() -> None:
        for _ in range(10_000):
            loop.call_later(3600.0, print).cancel()
        assert len(loop._timers) < 1000
        await asyncio.sleep(1.0)

    loop.run_until_complete(main())


def test_when_nothing_can_happen_the_tasks_that_wait_are_named(loop: VirtualLoop) -> None:
    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.create_task(waits_for_ever(), name="the one that hangs")

    with pytest.raises(Stuck, match=r"the one that hangs at .*waits_for_ever"):
        loop.run_until_complete(main())


def test_time_that_stands_still_is_noticed(loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("busway.testing.simulation.loop._BUSY", 1000)

    async def spins() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match=r"stands still at 0\.000 s; .*spins"):
        loop.run_until_complete(spins())


def test_what_never_ends_is_noticed() -> None:
    async def ticks() -> None:
        while True:
            await asyncio.sleep(1.0)

    loop = VirtualLoop(limit=100.0)
    with pytest.raises(Stuck, match=r"not over after 100 s; .*ticks"):
        loop.run_until_complete(ticks())


def test_work_for_a_thread_is_done_here_after_a_while() -> None:
    loop = VirtualLoop(pause=lambda: 0.25)

    def work(fails: bool) -> int:
        if fails:
            raise ValueError("as asked")
        return threading.get_ident()

    async def main() -> None:
        assert await asyncio.to_thread(work, False) == threading.get_ident()
        assert loop.time() == 0.5
        with pytest.raises(ValueError, match="as asked"):
            await loop.run_in_executor(None, work, True)

    loop.run_until_complete(main())


def test_sockets_threads_and_signals_are_refused(loop: VirtualLoop) -> None:
    async def main() -> None:
        with socket.socket() as mine:
            for attempt in (
                lambda: loop.create_connection(asyncio.Protocol, "localhost", 1),
                lambda: loop.getaddrinfo("localhost", 1),
                lambda: loop.add_reader(mine.fileno(), print),
                lambda: loop.call_soon_threadsafe(print),
                lambda: loop.add_signal_handler(2, print),
            ):
                with pytest.raises(RuntimeError, match="sim:// addresses"):
                    attempt()

    loop.run_until_complete(main())


def test_sets_of_tasks_and_futures_have_an_order(loop: VirtualLoop) -> None:
    async def main() -> None:
        futures = [loop.create_future() for _ in range(50)]
        tasks = [asyncio.create_task(asyncio.sleep(1.0)) for _ in range(50)]
        assert [hash(future) - hash(futures[0]) for future in futures] == list(range(50))
        assert sorted(tasks, key=hash) == tasks
        await asyncio.wait(tasks)

    loop.run_until_complete(main())


def test_what_fails_where_nobody_waits_is_kept(loop: VirtualLoop) -> None:
    async def main() -> None:
        loop.call_soon(int, "no number")
        await asyncio.sleep(1.0)

    loop.run_until_complete(main())
    assert [type(failure["exception"]) for failure in loop.failures] == [ValueError]


def test_nothing_of_a_dead_process_runs(world: World) -> None:
    seen: list[str] = []

    async def lives() -> None:
        try:
            seen.append("begun")
            await asyncio.sleep(5.0)
            seen.append("never")
        finally:
            seen.append("never tidied up")

    async def main() -> None:
        process = world.launch("p", "host", lives)
        await asyncio.sleep(1.0)
        assert world.kill(process)
        assert not world.kill(process)
        await asyncio.sleep(10.0)
        assert seen == ["begun"]
        assert [task.get_name() for task in world.loop.tasks()] == [asyncio.current_task().get_name()]

    world.run(main())


def test_each_host_has_a_clock_of_its_own(world: World) -> None:
    async def main() -> None:
        await asyncio.sleep(1.0)
        ahead = Process("p", "host", world.random("p"), skew=500)
        seen: list[int] = []
        world.loop.enter(ahead, lambda: seen.append(world.loop.time_ns()))
        assert seen == [EPOCH + 10**9 + 500]
        assert world.loop.time_ns() == EPOCH + 10**9

    world.run(main())
