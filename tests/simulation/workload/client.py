"""Client programs of a world with one broker: they publish, subscribe, serve and acknowledge, and record a history.

Each program chooses its actions and their times at random. It retries after expected failures, and records unexpected
errors as problems.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, ClassVar, Final, TypeVar

import busway
from busway.errors import (
    AckLate,
    BusError,
    Closed,
    Disconnected,
    NoConsumers,
    NoResponders,
    RemoteProtocolError,
    ServiceError,
    StoreFailed,
)
from busway.message import Message
from tests.simulation.workload.history import LEASE, Delivery, History, Key, RetainedState, key_of, payload

T = TypeVar("T")

CHANNEL: Final = "work"
_RECONNECT: Final = (0.0, 0.1, 0.5, 1.0, 2.0)
RETRY: Final = 0.5
TIMEOUT: Final = 5.0
ROLES: Final = ("read", "consume", "live", "share", "serve", "pull")


class Program:
    """A client program, from its start to stop()."""

    acts: ClassVar[tuple[str, ...]] = ("order", "order", "order", "order", "say", "job", "task", "ask", "post")
    lease: ClassVar[float] = LEASE

    def __init__(
        self,
        name: str,
        urls: list[str],
        ledger: History,
        chance: Random,
        *,
        stream: str,
        store: dict[str, Any] | None,
        roles: tuple[str, ...],
        steps: int,
        gap: float,
        dialled: Callable[[], float],
    ) -> None:
        self.name = name
        self.roles = roles
        self.bus: busway.Bus | None = None
        self.working = True
        """True until it has completed all its steps."""
        self.ended = asyncio.Event()
        self._urls = urls
        self._ledger = ledger
        self._chance = chance
        self._stream = stream
        self._store = store
        self._steps = steps
        self._gap = gap
        self._dialled = dialled
        self._established = 0.0
        self._stopping = asyncio.Event()
        self._numbers = dict.fromkeys(("orders", "live", "jobs", "tasks", "ask"), 0)

    @property
    def connected(self) -> bool:
        """True if it has a connection."""
        return self.bus is not None and self.bus.state == "connected"

    def stop(self) -> None:
        """Close the client, and end the program."""
        self._stopping.set()

    async def main(self) -> None:
        try:
            self.bus = bus = await self._open()
            try:
                await self._work(bus)
            finally:
                await bus.close()
        except Exception as error:
            self._unexpected("its work", error)
        finally:
            self.working = False
            self.ended.set()

    async def _open(self) -> busway.Bus:
        while True:
            timeout = TIMEOUT * (1 + len(self._urls) // 2)  # for all servers together
            bus = busway.connect(*self._urls, name=self.name, reconnect=_RECONNECT, timeout=timeout)
            try:
                return await bus.open()
            except BusError:
                await asyncio.sleep(RETRY)

    async def _work(self, bus: busway.Bus) -> None:
        self._established = asyncio.get_running_loop().time()
        if self._store is not None:
            store = self._store
            await self._retry(lambda: bus.create_stream(self._stream, topics=["orders/**"], **store))
        tasks = [
            asyncio.create_task(self._guarded(getattr(self, f"_{role}"), bus), name=f"{self.name} {role}")
            for role in self.roles
        ]
        tasks.append(asyncio.create_task(self._guarded(self._watch, bus), name=f"{self.name} events"))
        publishing: list[asyncio.Task[None]] = []
        for _ in range(self._steps):
            await asyncio.sleep(self._chance.expovariate(1 / self._gap))
            act = self._chance.choice(self.acts)
            if act == "order":  # in tasks, since a durable publish may wait for the next connection
                publishing += [self._order(bus) for _ in range(self._chance.choice((1, 1, 2, 5)))]
            else:
                await self._guarded(getattr(self, f"_{act}"), bus)
        await asyncio.gather(*publishing)
        self.working = False
        await self._stopping.wait()
        await bus.close()
        await asyncio.gather(*tasks)

    async def _guarded(self, act: Callable[[busway.Bus], Awaitable[object]], bus: busway.Bus) -> None:
        try:
            await act(bus)
        except (Disconnected, Closed, TimeoutError):
            pass  # expected with faults
        except Exception as error:
            self._unexpected(getattr(act, "__name__", "act").strip("_"), error)

    async def _retry(self, act: Callable[[], Awaitable[T]]) -> T:
        """Retry until the action succeeds."""
        while True:
            try:
                return await act()
            except (Disconnected, TimeoutError, StoreFailed):
                await asyncio.sleep(RETRY)

    def _unexpected(self, what: str, error: BaseException) -> None:
        self._ledger.problems.append(f"{self.name}: {what}: {type(error).__name__}: {error}")

    def _next(self, what: str) -> int:
        self._numbers[what] += 1
        return self._numbers[what]

    def _key(self, what: str) -> Key:
        return self.name, self._next(what)

    # Actions.

    def _order(self, bus: busway.Bus) -> asyncio.Task[None]:
        number = self._next("orders")
        self._ledger.sent[self.name].append(number)
        publish = bus.publish(f"orders/{self.name}", payload((self.name, number)), durable=True)
        return asyncio.create_task(self._stored(publish, number), name=f"{self.name} order {number}")

    async def _stored(self, publish: Awaitable[Any], number: int) -> None:
        try:
            position = await publish
        except (StoreFailed, Closed):
            return  # the broker has not acknowledged it
        except Exception as error:
            self._unexpected(f"the durable message {number}", error)
            return
        self._ledger.stored[self.name, number] = position.broker, position.offset

    async def _say(self, bus: busway.Bus) -> None:
        await bus.publish(f"live/{self.name}", payload(self._key("live")))

    async def _job(self, bus: busway.Bus) -> None:
        await bus.publish(f"jobs/{self.name}", payload(self._key("jobs")))

    async def _task(self, bus: busway.Bus) -> None:
        key = self._key("tasks")
        try:
            await bus.push(f"tasks/{self.name}", payload(key), timeout=TIMEOUT)
        except NoConsumers:
            return
        self._ledger.pushed.add(key)

    async def _ask(self, bus: busway.Bus) -> None:
        text = payload(self._key("ask"))
        try:
            reply = await bus.request("sum", text, timeout=TIMEOUT)
        except (NoResponders, ServiceError):
            return
        self._ledger.replies += 1
        if reply.text != f"re {text}":
            self._ledger.problems.append(f"{self.name}: asked {text!r} and was answered {reply.text!r}")

    async def _post(self, bus: busway.Bus) -> None:
        posts = self._chance.random() < 0.6
        retained: RetainedState = (self._ledger.posts if posts else self._ledger.pins)[self.name]
        retained.tried += 1
        number = retained.tried
        try:
            if posts:
                await bus.post(f"status/{self.name}", payload((self.name, number)))
            else:
                await bus.pin(f"config/{self.name}", payload((self.name, number)))
        except StoreFailed:
            return
        retained.confirmed = max(retained.confirmed, number)

    # Roles: what it receives.

    async def _read(self, bus: busway.Bus) -> None:
        subscription = await self._retry(lambda: bus.subscribe("orders/**", since="all").start())
        async for message in subscription:
            self._ledger.read[self.name].append(key_of(message.text))

    async def _consume(self, bus: busway.Bus) -> None:
        window = self._chance.choice((0, 1, 4, 16))  # a larger window could not be processed within a lease
        limit = self._chance.choice((0, self.lease))  # without a limit a forgotten message stays in flight
        channel = await self._retry(
            lambda: bus.channel(
                self._stream,
                CHANNEL,
                window=window,
                lease=self.lease,
                max_deliveries=0,
                backoff=[0.2, 1.0],
                topic="orders/**",
                max_processing=limit,
            ).start()
        )
        async for message in channel:
            key = self._delivery_key(message)
            since = min(self._dialled(), self._established)
            self._ledger.delivered.append(Delivery(asyncio.get_running_loop().time(), self.name, key, since))
            await self._settle(message, key)

    def _delivery_key(self, message: Message) -> Key:
        """Return the key of the message."""
        return key_of(message.text)

    async def _settle(self, message: Message, key: Key) -> None:
        whim = self._chance.random()
        if whim < 0.3:
            await asyncio.sleep(self._chance.random() * 0.2)
        try:
            if whim > 0.95:
                await message.nack(delay=self._chance.choice((0.0, 0.5)))
            elif whim > 0.93:
                return  # not acknowledged: its lease ends, at the latest after max_processing
            else:
                await message.ack()
                self._ledger.done.setdefault(key, (asyncio.get_running_loop().time(), self.name))
        except (AckLate, Disconnected, StoreFailed, TimeoutError):
            return

    async def _live(self, bus: busway.Bus) -> None:
        subscription = await self._retry(lambda: bus.subscribe("live/**").start())
        async for message in subscription:
            self._ledger.live[self.name].append(key_of(message.text))

    async def _share(self, bus: busway.Bus) -> None:
        subscription = await self._retry(lambda: bus.subscribe("jobs/**", group="workers").start())
        async for message in subscription:
            self._ledger.shared.append((self.name, key_of(message.text)))

    async def _pull(self, bus: busway.Bus) -> None:
        subscription = await self._retry(lambda: bus.subscribe("tasks/**").start())
        async for message in subscription:
            self._ledger.taken.append((self.name, key_of(message.text)))

    async def _serve(self, bus: busway.Bus) -> None:
        async def answer(message: Message) -> str:
            if self._chance.random() < 0.3:
                await asyncio.sleep(self._chance.random() * 0.2)
            return f"re {message.text}"

        await self._retry(lambda: bus.serve("sum", answer, shared=True).start())

    async def _watch(self, bus: busway.Bus) -> None:
        async for event in bus.events():
            if isinstance(event.error, RemoteProtocolError):
                self._unexpected("what the broker said", event.error)
            if event.kind == "doubtful":
                self._ledger.doubtful.add(self.name)
            if event.kind == "resumed":
                self._ledger.resumed += 1
                self._established = asyncio.get_running_loop().time()
