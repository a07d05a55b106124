"""Client programs of a world with a cluster: they also use scopes, retained messages and exclusive services.

Some programs know all nodes and connect to another one when theirs is lost. The history records the node with each
sent and received message, since order and uniqueness are guaranteed only per pair of nodes.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import ClassVar, Final, Literal

import busway
from busway.errors import Disconnected, NoResponders, ServiceError, ServiceTaken, StoreFailed
from busway.message import Message
from tests.simulation.workload.client import RETRY, TIMEOUT, Program
from tests.simulation.workload.history import History, Key, RetainedState, key_of, payload

ROLES: Final = ("read", "consume", "live", "follow", "share", "pull", "only", "serve")
_KEPT: Final = "re:(status|config)/.*"
BRIEF: Final = 3
"""The number of topics that programs subscribe to for a short time."""


class Member(Program):
    """A client program of a cluster."""

    acts: ClassVar[tuple[str, ...]] = (
        "order",
        "order",
        "say",
        "say",
        "job",
        "task",
        "call",
        "ask",
        "scoped",
        "call",
        "keep",
        "keep",
        "brief",
    )

    lease: ClassVar[float] = 8.0

    def __init__(
        self,
        client: str,
        name: str,
        urls: list[str],
        ledger: History,
        chance: Random,
        *,
        others: list[str],
        stream: str,
        roles: tuple[str, ...],
        steps: int,
        gap: float,
        dialled: Callable[[], float],
    ) -> None:
        super().__init__(
            name, urls, ledger, chance, stream=stream, store=None, roles=roles, steps=steps, gap=gap, dialled=dialled
        )
        self.service = f"own/{client}"
        self._others = others

    @property
    def place(self) -> str:
        """The name of its current or last node."""
        return str(self.bus.server["name"]) if self.bus is not None else ""

    # Actions.

    async def _say(self, bus: busway.Bus) -> None:
        number = self._next("live")
        await bus.publish(f"live/{self.name}", payload((f"{self.name}@{self.place}", number)))

    async def _scoped(self, bus: busway.Bus) -> None:
        """Publish for clients of the same node, or of other nodes."""
        scope: Literal["local", "remote"] = self._chance.choice(("local", "remote"))
        key = f"{self.name}@{self.place}", self._next("live")
        self._ledger.scoped[key] = scope
        await bus.publish(f"live/{self.name}", payload(key), scope=scope)

    async def _call(self, bus: busway.Bus) -> None:
        text = payload(self._key("ask"))
        try:
            reply = await bus.request(f"own/{self._chance.choice(self._others)}", text, timeout=TIMEOUT)
        except (NoResponders, ServiceError):
            return
        self._ledger.replies += 1
        if reply.text != f"re {text}":
            self._ledger.problems.append(f"{self.name}: asked {text!r} and was answered {reply.text!r}")

    async def _brief(self, bus: busway.Bus) -> None:
        async with bus.subscribe(f"brief/{self._chance.randrange(BRIEF)}"):
            await asyncio.sleep(self._chance.random() * self._gap)

    async def _keep(self, bus: busway.Bus) -> None:
        """Post or pin a message, or withdraw it."""
        posts, takes_back = self._chance.random() < 0.5, self._chance.random() < 0.25
        retained: RetainedState = (self._ledger.posts if posts else self._ledger.pins)[self.name]
        retained.tried += 1
        number, topic = retained.tried, f"{'status' if posts else 'config'}/{self.name}"
        try:
            if takes_back:
                retained.absent.add(number)
                await (bus.unpost(topic) if posts else bus.unpin(topic))
            elif posts:
                await bus.post(topic, payload((self.name, number)))
            else:
                await bus.pin(topic, payload((self.name, number)))
        except StoreFailed:
            return
        retained.confirmed = max(retained.confirmed, number)

    # Roles: what it receives.

    async def _live(self, bus: busway.Bus) -> None:
        subscription = await self._retry(lambda: bus.subscribe("live/**").start())
        async for message in subscription:
            self._ledger.live[f"{self.name}@{self.place}"].append(key_of(message.text))

    async def _know(self, bus: busway.Bus) -> None:
        """Follow the posts and pins of all nodes, and their withdrawals."""
        known = self._ledger.known[self.name]
        subscription = await self._retry(lambda: bus.subscribe(_KEPT, watch=True).start())
        async for message in subscription:
            if message.kind == "withdrawn":
                if known.pop(message.topic, None) is None:
                    self._ledger.problems.append(f"{self.name}: {message.text} was withdrawn, but never received")
                continue
            _, number = key_of(message.text)
            if number <= known.get(message.topic, -1):
                self._ledger.problems.append(f"{self.name}: {message.text} came after {known[message.topic]}")
            known[message.topic] = number

    async def _read(self, bus: busway.Bus) -> None:
        """Read all stored messages of all nodes from the beginning."""
        subscription = await self._retry(lambda: bus.subscribe("orders/**", since="all").start())
        async for message in subscription:
            assert message.broker is not None, "the message is stored"
            assert message.offset is not None, "the message is stored"
            self._ledger.history[self.name].append((message.broker, message.offset, key_of(message.text)))

    def _delivery_key(self, message: Message) -> Key:
        """Return the key with the node, since a message that was published at two nodes is stored twice."""
        name, number = key_of(message.text)
        return f"{name} at {message.broker}", number

    async def _follow(self, bus: busway.Bus) -> None:
        """Receive new durable messages of all nodes."""
        subscription = await self._retry(lambda: bus.subscribe("orders/**").start())
        async for message in subscription:
            self._ledger.followed[f"{self.name}@{self.place}"].append(key_of(message.text))

    async def _only(self, bus: busway.Bus) -> None:
        """Serve an exclusive service. The service of a killed program may still be registered when this one starts."""
        while True:
            try:
                service = await self._retry(lambda: bus.serve(self.service).start())
                break
            except ServiceTaken:
                await asyncio.sleep(RETRY)
        async for request in service:
            try:
                await request.reply(f"re {request.text}")
            except Disconnected:
                continue


def received_by(ledger: dict[str, list[Key]], who: str) -> list[Key]:
    """Return the messages that a program received at all nodes."""
    return [key for place, keys in ledger.items() if place.startswith(f"{who}@") for key in keys]


def roles(chance: Random) -> tuple[str, ...]:
    """Choose the roles of a program."""
    return (*(role for role in ROLES if chance.random() < 0.5), "know")
