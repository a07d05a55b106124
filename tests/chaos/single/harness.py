"""A broker in a process of its own that is killed under load, again and again, and workers that notice what it forgets.

The workers' clients live over all rounds: they reconnect, send again what was not answered, and go on reading where they were.
What the broker has in the end is read once more by a stranger and compared with what each worker knows.
"""

import asyncio
import random
import signal
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

import busway
from busway.positions import Position
from busway.streams import Safety, StreamConfig

PATIENCE = 60.0
RECONNECT = (0.0, 0.005, 0.02)
LATER: Final = "later"
"""The topic of messages with a delay."""


class Stored(NamedTuple):
    """A message as the stranger found it."""

    place: Position
    topic: str
    payload: bytes


class Broker:
    """`busway serve` on a data folder, in a process that can be killed."""

    def __init__(self, folder: Path, safety: Safety) -> None:
        self.data = folder / "data"
        self.address = f"unix:{folder / 'bus'}"
        self.kills = 0
        self._process: asyncio.subprocess.Process | None = None
        self.configure(StreamConfig(name="default", safety=safety, max_age=None))

    def configure(self, config: StreamConfig) -> None:
        """A stream that is there from the start."""
        folder = self.data / "streams" / config.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stream.json").write_bytes(msgspec.json.encode(config))

    async def start(self) -> None:
        """Return when it answers."""
        path = self.address.removeprefix("unix:")
        arguments = ("-m", "busway", "serve", "--unix", path, "--data", str(self.data), "--quiet")
        self._process = await asyncio.create_subprocess_exec(sys.executable, *arguments)
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    async with busway.connect(self.address, timeout=PATIENCE):
                        return
                except busway.ConnectFailed:
                    assert self._process.returncode is None, "the broker does not start any more"
                    await asyncio.sleep(0.005)

    async def kill(self) -> None:
        """Without warning; return when it is gone."""
        assert self._process is not None
        assert self._process.returncode is None, "the broker has ended by itself"
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        self.kills += 1

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            async with asyncio.timeout(PATIENCE):
                await self._process.wait()

    async def stored(self, pattern: str = "**") -> list[Stored]:
        """Everything in its default stream, read by somebody who has nothing else to do with it."""
        found: list[Stored] = []
        async with busway.connect(self.address, timeout=PATIENCE) as stranger:
            end = await stranger.publish("end", b"", durable=True)
            async with stranger.subscribe(pattern, since="all") as everything:
                async for batch in everything.batches():
                    for message in batch:
                        assert message.position is not None
                        found.append(Stored(message.position, message.topic, message.payload))
                    if found[-1].place.offset >= end.offset:
                        return found
        raise AssertionError("the subscription has ended")


class Worker(ABC):
    """Somebody who uses the broker all the time, and knows what it owes to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.busy = 0
        """Grows with what it does: the killer looks at it."""
        self.stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self, address: str, worked: Callable[[], None]) -> None:
        self._worked = worked
        self._task = asyncio.create_task(self._run(address), name=self.name)

    async def stop(self) -> None:
        """Come to an end with what is under way; the broker is there."""
        self.stopping = True
        assert self._task is not None
        async with asyncio.timeout(PATIENCE):
            await self._task

    def failed(self) -> None:
        """Raise what has ended it too early."""
        if self._task is not None and self._task.done():
            self._task.result()
            raise AssertionError(f"{self.name} has ended")

    def did(self, count: int = 1) -> None:
        self.busy += count
        self._worked()

    async def _run(self, address: str) -> None:
        async with busway.connect(address, name=self.name, reconnect=RECONNECT, timeout=PATIENCE) as bus:
            await self.work(bus)

    @abstractmethod
    async def work(self, bus: busway.Bus) -> None:
        """Until `stopping`."""

    @abstractmethod
    def check(self, stored: list[Stored]) -> None:
        """Raise AssertionError if the broker has not kept what it promised to this one."""

    def finish(self, stored: list[Stored]) -> bool:
        """Whether it has seen what it has to see; called until it has, before it is stopped."""
        return True


class Trial:
    """Workers and a broker that is killed while they are busy."""

    def __init__(self, folder: Path, workers: list[Worker], *, safety: Safety = "synced", seed: int = 0) -> None:
        self.broker = Broker(folder, safety)
        self.workers = workers
        self.chance = random.Random(seed)
        self.stored: list[Stored] = []
        self._worked = asyncio.Event()

    async def run(self, rounds: int, told: Callable[[int], object] = lambda number: None) -> None:
        await self.broker.start()
        try:
            for worker in self.workers:
                worker.start(self.broker.address, self._worked.set)
            for number in range(rounds):
                await self._busy()
                await self.broker.kill()
                await self.broker.start()
                told(number + 1)
            await self._busy()
            await self._end()
        finally:
            await self.broker.stop()

    async def _busy(self) -> None:
        """Until each worker has got on, and then for a random bit of work more."""
        begin = {worker: worker.busy for worker in self.workers}
        more = self.chance.randrange(2000)
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    got = [worker.busy - begin[worker] for worker in self.workers]
                    if min(got) > 0 and sum(got) >= more:
                        break
                    for worker in self.workers:
                        worker.failed()
                    self._worked.clear()
                    await self._worked.wait()
        except TimeoutError:
            stuck = [worker.name for worker in self.workers if worker.busy == begin[worker]]
            did = {worker.name: worker.busy - begin[worker] for worker in self.workers}
            raise AssertionError(f"after {self.broker.kills} kills {stuck} did not get on; the others: {did}") from None
        for _ in range(self.chance.randrange(20)):
            await asyncio.sleep(0)

    async def _end(self) -> None:
        writers = [worker for worker in self.workers if isinstance(worker, Writer)]
        for writer in writers:
            await writer.stop()
        self.stored = await self.broker.stored()
        while late := [worker for worker in self.workers if not worker.finish(self.stored)]:
            for worker in late:
                worker.failed()
            self._worked.clear()
            try:
                # As long as somebody gets on it may take its time.
                await asyncio.wait_for(self._worked.wait(), PATIENCE)
            except TimeoutError:
                names = ", ".join(f"{worker.name} ({worker.busy} handled)" for worker in late)
                raise AssertionError(f"of {len(self.stored)} messages not all came to {names}") from None
        for worker in self.workers:
            if worker not in writers:
                await worker.stop()
        check(self.stored)
        for worker in self.workers:
            worker.check(self.stored)


class Writer(Worker):
    """One that makes messages; stopped before the others, who have to see all of them."""


def check(stored: list[Stored]) -> None:
    """What holds for every stream: no offset and no sequence is left out, and nothing is stored twice.

    But for what was to be delivered later: where it waited nobody is given anything.
    """
    offsets = [one.place.offset for one in stored]
    assert offsets == sorted(set(offsets))
    assert 0 <= offsets[-1] + 1 - len(stored) <= sum(one.topic == LATER for one in stored)
    sequences: Counter[str] = Counter()
    for one in stored:
        sequences[one.topic] += 1
        assert one.place.sequence == sequences[one.topic], f"{one} is number {sequences[one.topic]} of its topic"
    twice = [payload for payload, count in Counter(one.payload for one in stored).items() if count > 1]
    assert not twice, f"stored twice: {twice[:5]}"
