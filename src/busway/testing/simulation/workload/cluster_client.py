"""The programs of a world of several nodes: as those of one, with what matters between nodes.

Some know all nodes and go elsewhere when theirs is gone. What they say and hear is noted with where they were at that moment: over
one pair of nodes messages keep their order and come once, over several ways they need not.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import ClassVar, Final, Literal

import busway
from busway.errors import Disconnected, NoResponders, ServiceError, ServiceTaken, StoreFailed
from busway.message import Message
from busway.testing.simulation.workload.client import AGAIN, TIMEOUT, Program
from busway.testing.simulation.workload.history import History, Key, Said, key_of, payload

ROLES: Final = ("read", "consume", "live", "follow", "share", "pull", "only", "serve")
_KEPT: Final = "re:(status|config)/.*"
BRIEF: Final = 3
"""Topics to which programs subscribe for a moment."""


class Member(Program):
    """One client of a mesh."""

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
        """The node where it is, or was last."""
        return str(self.bus.server["name"]) if self.bus is not None else ""

    # What it does.

    async def _say(self, bus: busway.Bus) -> None:
        number = self._next("live")
        await bus.publish(f"live/{self.name}", payload((f"{self.name}@{self.place}", number)))

    async def _scoped(self, bus: busway.Bus) -> None:
        """For clients of the same node, or of others."""
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
        """Post or pin something, or take it back."""
        posts, takes_back = self._chance.random() < 0.5, self._chance.random() < 0.25
        said: Said = (self._ledger.posts if posts else self._ledger.pins)[self.name]
        said.tried += 1
        number, topic = said.tried, f"{'status' if posts else 'config'}/{self.name}"
        try:
            if takes_back:
                said.absent.add(number)
                await (bus.unpost(topic) if posts else bus.unpin(topic))
            elif posts:
                await bus.post(topic, payload((self.name, number)))
            else:
                await bus.pin(topic, payload((self.name, number)))
        except StoreFailed:
            return
        said.confirmed = max(said.confirmed, number)

    # What it takes.

    async def _live(self, bus: busway.Bus) -> None:
        subscription = await self._insist(lambda: bus.subscribe("live/**").start())
        async for message in subscription:
            self._ledger.live[f"{self.name}@{self.place}"].append(key_of(message.text))

    async def _know(self, bus: busway.Bus) -> None:
        """What is posted and pinned at any node, and that it is gone."""
        known = self._ledger.known[self.name]
        subscription = await self._insist(lambda: bus.subscribe(_KEPT, watch=True).start())
        async for message in subscription:
            if message.kind == "withdrawn":
                if known.pop(message.topic, None) is None:
                    self._ledger.problems.append(f"{self.name}: told of the end of {message.text}, and never had it")
                continue
            _, number = key_of(message.text)
            if number <= known.get(message.topic, -1):
                self._ledger.problems.append(f"{self.name}: {message.text} came behind {known[message.topic]}")
            known[message.topic] = number

    async def _read(self, bus: busway.Bus) -> None:
        """Everything that is stored at any node, from the beginning."""
        subscription = await self._insist(lambda: bus.subscribe("orders/**", since="all").start())
        async for message in subscription:
            assert message.broker is not None, "it is a stored one"
            assert message.offset is not None, "likewise"
            self._ledger.history[self.name].append((message.broker, message.offset, key_of(message.text)))

    def _handed(self, message: Message) -> Key:
        """Who published it at another node, too, has published two messages."""
        name, number = key_of(message.text)
        return f"{name} at {message.broker}", number

    async def _follow(self, bus: busway.Bus) -> None:
        """Durable messages of all nodes, as they come."""
        subscription = await self._insist(lambda: bus.subscribe("orders/**").start())
        async for message in subscription:
            self._ledger.followed[f"{self.name}@{self.place}"].append(key_of(message.text))

    async def _only(self, bus: busway.Bus) -> None:
        """An exclusive service, which it keeps wherever it goes. That of a program which was killed may be there still when this one begins."""
        while True:
            try:
                service = await self._insist(lambda: bus.serve(self.service).start())
                break
            except ServiceTaken:
                await asyncio.sleep(AGAIN)
        async for request in service:
            try:
                await request.reply(f"re {request.text}")
            except Disconnected:
                continue


def heard(ledger: dict[str, list[Key]], who: str) -> list[Key]:
    """What a program got, wherever it was."""
    return [key for place, keys in ledger.items() if place.startswith(f"{who}@") for key in keys]


def roles(chance: Random) -> tuple[str, ...]:
    """What a member of a mesh takes."""
    return (*(role for role in ROLES if chance.random() < 0.5), "know")
