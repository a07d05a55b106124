"""Clients of a broker that is killed: publishers of stored messages, and subscribers that must see each of them once."""

import asyncio
import random
from contextlib import suppress

import busway
from busway.client.channels.channel import Channel
from busway.errors import AckLate
from busway.positions import Position, Positions
from busway.topic import matches
from tests.chaos.single.harness import LATER, PATIENCE, Stored, Worker, Writer

TOPICS = ("orders/north", "orders/south", "audit")


class Publisher(Writer):
    """Stores messages alone, side by side and many at once, and remembers each outcome."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name)
        self.chance = random.Random(seed)
        self.placed: dict[bytes, Position] = {}
        self.failed_ones: set[bytes] = set()
        self._count = 0

    async def work(self, bus: busway.Bus) -> None:
        while not self.stopping:
            topic = self.chance.choice(TOPICS)
            match self.chance.randrange(3):
                case 0:
                    await self._one(bus, topic)
                case 1:
                    await asyncio.gather(*(self._one(bus, topic) for _ in range(self.chance.randrange(1, 64))))
                case _:
                    await self._many(bus, topic, self.chance.randrange(1, 300))

    def _payload(self) -> bytes:
        self._count += 1
        return b"%s %d %s" % (self.name.encode(), self._count, b"." * self.chance.randrange(200))

    async def _one(self, bus: busway.Bus, topic: str) -> None:
        payload = self._payload()
        try:
            async with asyncio.timeout(PATIENCE):
                self.placed[payload] = await bus.publish(topic, payload, durable=True)
            self.did()
        except busway.Disconnected:
            await self._refused(payload)

    async def _many(self, bus: busway.Bus, topic: str, count: int) -> None:
        payloads = [self._payload() for _ in range(count)]
        try:
            async with asyncio.timeout(PATIENCE):
                placed = await bus.publish_many(topic, payloads, durable=True)
            self.placed |= dict(zip(payloads, placed, strict=True))
            self.did(count)
        except busway.Disconnected:
            await self._refused(*payloads)

    async def _refused(self, *payloads: bytes) -> None:
        self.failed_ones.update(payloads)
        await asyncio.sleep(0.001)  # there is no connection at the moment

    def check(self, stored: list[Stored]) -> None:
        """No acknowledged message is lost, none is elsewhere than it was told, and what was refused is not there."""
        mine = [one for one in stored if one.payload.startswith(self.name.encode() + b" ")]
        found = {one.payload: one.place for one in mine}
        for payload, place in self.placed.items():
            assert found.get(payload) == place, f"{payload!r} was told {place}, but is at {found.get(payload)}"
        assert found.keys() == self.placed.keys(), "something is stored that nobody was told of"
        for topic in TOPICS:
            numbers = [int(one.payload.split()[1]) for one in mine if one.topic == topic]
            assert numbers == sorted(numbers), f"the order of {self.name} on {topic} was not kept"


class Delayer(Writer):
    """Stores messages to be delivered a little later, also while the broker is down then."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name)
        self.chance = random.Random(seed)
        self.told: set[bytes] = set()
        self.came: list[bytes] = []
        self._count = 0

    async def work(self, bus: busway.Bus) -> None:
        async with bus.subscribe(LATER, since="all") as own:
            while not self.stopping:
                await self._one(bus)
            while self.told - set(self.came):
                self.came.append((await own.recv(timeout=PATIENCE)).payload)

    async def _one(self, bus: busway.Bus) -> None:
        self._count += 1
        payload = b"%s %d" % (self.name.encode(), self._count)
        try:
            async with asyncio.timeout(PATIENCE):
                await bus.publish(LATER, payload, durable=True, delay=self.chance.uniform(0.001, 0.3))
        except busway.Disconnected:
            await asyncio.sleep(0.001)  # there is no connection at the moment
        else:
            self.told.add(payload)
            self.did()

    def check(self, stored: list[Stored]) -> None:
        """Each that was acknowledged came, and came once."""
        kept = [one.payload for one in stored if one.topic == LATER]
        assert self.came == kept, "it did not get what is there"
        assert len(kept) == len(set(kept)), "one came twice"
        assert self.told == set(kept), "one is lost, or came although it was refused"


class Subscriber(Worker):
    """Reads everything from the beginning on, over all reconnects."""

    def __init__(self, name: str, pattern: str = "**") -> None:
        super().__init__(name)
        self.pattern = pattern
        self.seen: list[Stored] = []
        self._expected: int | None = None

    async def work(self, bus: busway.Bus) -> None:
        async with bus.subscribe(self.pattern, since="all", limit=2000) as subscription:
            await self.read(subscription)
            assert (subscription.missed, subscription.lost) == (0, 0)

    async def read(self, subscription: busway.Subscription) -> None:
        while not self.stopping:
            try:
                batch = await subscription.take(500, timeout=0.2)
            except busway.Timeout:
                continue
            for message in batch:
                assert message.position is not None
                self.seen.append(Stored(message.position, message.topic, message.payload))
            self.did(len(batch))

    def _owed(self, stored: list[Stored]) -> list[Stored]:
        return [one for one in stored if matches(self.pattern, one.topic)]

    def finish(self, stored: list[Stored]) -> bool:
        if self._expected is None:
            self._expected = len(self._owed(stored))
        return len(self.seen) >= self._expected

    def check(self, stored: list[Stored]) -> None:
        """Each once, in order, and nothing that was not kept."""
        assert self.seen == self._owed(stored), f"{self.name} has seen something else"


class Resumer(Subscriber):
    """Ends its subscription after each few hundred messages, keeps the position as text, and begins a new one from there."""

    async def work(self, bus: busway.Bus) -> None:
        kept = ""
        while not self.stopping:
            try:
                subscription = await bus.subscribe(self.pattern, since=kept or "all").start()
            except busway.Disconnected:
                await asyncio.sleep(0.001)
                continue
            begin = len(self.seen)
            while not self.stopping and len(self.seen) < begin + 300:
                try:
                    message = await subscription.recv(timeout=0.2)
                except busway.Timeout:
                    break
                assert message.position is not None
                self.seen.append(Stored(message.position, message.topic, message.payload))
                self.did()
            kept = str(subscription.position)
            assert Positions.parse(kept)
            await subscription.close()


class Jobs:
    """What the consumers of one channel know together."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, bytes] = {}
        """By offset: the broker has said that this is noted."""
        self.unsure: set[int] = set()
        """Acknowledged by somebody who did not hear whether it was noted, and not acknowledged again since."""
        self.again = 0
        self.wrong: list[str] = []


class Consumer(Worker):
    """Shares a channel with others: acknowledges most of what it gets, gives some of it back, and forgets some."""

    def __init__(self, name: str, jobs: Jobs, seed: int, *, window: int = 64) -> None:
        super().__init__(name)
        self.jobs, self.window, self.chance = jobs, window, random.Random(seed)

    async def work(self, bus: busway.Bus) -> None:
        channel = bus.channel("default", "jobs", window=self.window, lease="5s", max_deliveries=0, backoff=[0.05, 0.5])
        async with channel as jobs:
            while not self.stopping:
                try:
                    batch = await jobs.take(500, timeout=0.2)
                except busway.Timeout:
                    continue
                await self._deal(jobs, batch)
                self.did(len(batch))

    async def _deal(self, channel: Channel, batch: list[busway.Message]) -> None:
        for message in batch:
            self.jobs.again += message.deliveries > 1
            if message.offset in self.jobs.acknowledged:
                self.jobs.wrong.append(f"{self.name} got {message} at {message.offset} again, which was acknowledged")
        good, bad = list[busway.Message](), list[busway.Message]()
        for message in batch:
            (good if self.chance.random() < 0.9 else bad).append(message)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(self._ack(message) for message in good))
            if bad:
                with suppress(busway.Disconnected, AckLate):
                    await channel.nack(bad)

    async def _ack(self, message: busway.Message) -> None:
        offset = message.offset or 0
        try:
            await message.ack()
        except AckLate:
            return  # somebody else has it
        except busway.Disconnected:
            if offset not in self.jobs.acknowledged:
                self.jobs.unsure.add(offset)  # what was not noted comes again
            return
        self.jobs.acknowledged[offset] = message.payload
        self.jobs.unsure.discard(offset)

    def finish(self, stored: list[Stored]) -> bool:
        return len(self.jobs.acknowledged) + len(self.jobs.unsure) >= len(stored)

    def check(self, stored: list[Stored]) -> None:
        """Each message was acknowledged in the end, and none came again after that."""
        assert not self.jobs.wrong, self.jobs.wrong[:3]
        payloads = {one.place.offset: one.payload for one in stored}
        assert self.jobs.acknowledged.keys() | self.jobs.unsure == payloads.keys()
        assert self.jobs.acknowledged.items() <= payloads.items()


def usual(seed: int = 0) -> list[Worker]:
    """Three publishers and one for later, three who read, and three who share a channel."""
    jobs = Jobs()
    return [
        *(Publisher(f"publisher-{number}", seed + number) for number in range(3)),
        Delayer("delayer", seed),
        Subscriber("everything"),
        Subscriber("orders", "orders/*"),
        Resumer("resumer", "audit"),
        Consumer("consumer-0", jobs, seed, window=1000),
        Consumer("consumer-1", jobs, seed + 1, window=8),
        Consumer("puller", jobs, seed + 2, window=0),
    ]
