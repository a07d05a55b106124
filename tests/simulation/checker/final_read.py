"""The final client of a run with one broker: it reads the final state, and tests subscriptions and services."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import busway
from tests.simulation.checker.single import FinalState
from tests.simulation.workload.client import CHANNEL, Program
from tests.simulation.workload.history import History, key_of, payload

NAME: Final = "auditor"
_PATIENCE: Final = 120.0
"""Seconds after which the auditor stops waiting."""
_LOOK: Final = 0.5


async def until(condition: Callable[[], bool], patience: float = _PATIENCE) -> bool:
    """Wait until the condition is true. Return False if `patience` seconds pass before."""
    loop = asyncio.get_running_loop()
    limit = loop.time() + patience
    look = _LOOK / 16
    while not condition():
        if loop.time() >= limit:
            return False
        await asyncio.sleep(look)
        look = min(look * 2, _LOOK)
    return True


class Auditor:
    """The final client, in its own process."""

    def __init__(
        self, urls: list[str], ledger: History, programs: list[Program], stream: str, sessions: Callable[[], int]
    ) -> None:
        self.state = FinalState()
        self.done = asyncio.Event()
        self._urls = urls
        self._ledger = ledger
        self._programs = programs
        self._stream = stream
        self._sessions = sessions
        """Return the number of the broker's connections. A request would also report the real file system."""

    async def main(self) -> None:
        try:
            async with busway.connect(*self._urls, name=NAME) as bus:
                self.state.broker = bus.server["guid"]
                await self._connected(bus)
                await self._signal(bus)
                await self._kept(bus)
                await self._finished(bus)
                await self._stored(bus)
        except Exception as error:
            self._problem(f"a healthy broker refuses: {type(error).__name__}: {error}")
        finally:
            self.done.set()

    def _problem(self, text: str) -> None:
        self._ledger.problems.append(f"{NAME}: {text}")

    def _playing(self, role: str) -> list[str]:
        return [program.name for program in self._programs if role in program.roles]

    async def _signal(self, bus: busway.Bus) -> None:
        """Check that every subscription and service is restored."""
        ledger, key = self._ledger, (NAME, 1)
        await bus.publish(f"live/{NAME}", payload(key))
        await bus.publish(f"jobs/{NAME}", payload(key))
        await until(lambda: all(key in ledger.live[program] for program in self._playing("live")), 10.0)
        for program in self._playing("live"):
            if key not in ledger.live[program]:
                self._problem(f"the live subscription of {program} is not restored")
        if self._playing("share") and not await until(lambda: any(found == key for _, found in ledger.shared), 10.0):
            self._problem("no member of the group is restored")
        if self._playing("pull"):
            await bus.push(f"tasks/{NAME}", payload(key))
            if not await until(lambda: any(found == key for _, found in ledger.taken), 10.0):
                self._problem("a push was accepted, but no consumer has it")
        if self._playing("serve"):
            reply = await bus.request("sum", "1")
            if reply.text != "re 1":
                self._problem(f"the service answers {reply.text!r}")

    async def _connected(self, bus: busway.Bus) -> None:
        """Check that the broker has only the connections of living programs."""
        await bus.flush()
        if (count := self._sessions()) != len(self._programs) + 1:
            self._problem(f"the broker has {count} connections, and there are {len(self._programs) + 1} clients")

    async def _kept(self, bus: busway.Bus) -> None:
        self.state.posts = dict([key_of(message.text) for message in await bus.kept("status/**")])
        self.state.pins = dict([key_of(message.text) for message in await bus.kept("config/**")])

    async def _finished(self, bus: busway.Bus) -> None:
        """Wait until the channel's consumers have reached the end of the stream."""
        if not self._playing("consume"):
            return
        loop = asyncio.get_running_loop()
        limit, floor = loop.time() + _PATIENCE, -1
        while (info := await self._channel(bus)) is not None and info.lag:
            if info.floor > floor:  # there is progress, so wait longer
                limit, floor = loop.time() + _PATIENCE, info.floor
            if loop.time() >= limit:
                self._problem(f"the channel makes no progress: {info}")
                return
            await asyncio.sleep(_LOOK)
        if info is None:
            self._problem("the channel is gone")

    async def _channel(self, bus: busway.Bus) -> Any:
        return next((info for info in await bus.channels(self._stream) if info.name == CHANNEL), None)

    async def _stored(self, bus: busway.Bus) -> None:
        """Read the whole stream, and wait until its readers have reached the end, too."""
        stored = self.state.stored
        end = (await (await bus.stream(self._stream)).info()).next
        async with bus.subscribe("orders/**", since="all") as subscription:
            while (offset := stored[-1][0] if stored else -1) + 1 < end:
                try:
                    message = await subscription.recv(timeout=10.0)
                except TimeoutError:
                    if offset < 0 and not self._ledger.stored:
                        return
                    self._problem(f"the stream ends at {end}, but no message comes after {offset}")
                    return
                assert message.offset is not None, "the message is stored"
                stored.append((message.offset, key_of(message.text)))
        readers = self._playing("read")
        await until(lambda: all(len(self._ledger.read[program]) >= len(stored) for program in readers), 30.0)
