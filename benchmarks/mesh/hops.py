"""How long one message takes, over one node and over two, and what one more hop of a wire takes.

A hop is the way from one process to the next: write, wake up, read. Over one node a message takes two (client, broker, client), over two
nodes three. Beside it the same bytes go through one and through two processes that pass on what they read and know nothing else: what the
second one adds is one more hop of the bare wire, and the measure of what the second node adds.

Started as `python -m benchmarks.mesh.hops measure PLAN` and `relay PORT TO`. One message is under way at a time; both ends of it are in the measuring
process, so one clock is enough.
"""

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import msgspec

import busway
from benchmarks.peers.process import PATIENCE, Process
from benchmarks.peers.role import Control, forever, run
from benchmarks.peers.systems.base import free_port
from benchmarks.trips import Trip, p50s
from busway.transport import tune

from .nodes import mesh

BUFFER = 256 << 10
HEAD = 32
"""Bytes of a published frame besides the payload."""
HOST = "127.0.0.1"
Values = dict[str, float]


class Plan(msgspec.Struct, frozen=True):
    """What the measuring process is told."""

    here: str
    there: str
    sink: int
    """The port where it listens for what the relays pass on."""
    relays: tuple[int, int]
    """Ports of a relay that leads to the sink, and of one that leads to another relay."""
    size: int
    messages: int
    """Of each way in a round."""
    rounds: int


def trips(size: int, messages: int, rounds: int) -> list[Values]:
    """The p50 of each way in each round, in microseconds."""
    with mesh(2) as made:
        sink, one, two, last = (free_port() for _ in range(4))
        for port, to in ((one, sink), (last, sink), (two, last)):
            made.enter(Process(f"relay-{port}", _command("relay", str(port), str(to)), made.folder)).hear(
                "ready", PATIENCE
            )
        here, there = (node.url for node in made.nodes)
        plan = Plan(here, there, sink, (one, two), size, messages, rounds)
        command = _command("measure", msgspec.json.encode(plan).decode())
        found = made.enter(Process("measure", command, made.folder)).hear("rounds", PATIENCE * (1 + rounds))
        return cast("list[Values]", found["rounds"])


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.mesh.hops", *words]


# The processes.


class _Wire(asyncio.BufferedProtocol):
    """Hands on what it reads."""

    def __init__(self, take: Callable[[memoryview], object]) -> None:
        self._buffer = memoryview(bytearray(BUFFER))
        self._take = take

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tune(cast("asyncio.Transport", transport))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002, named by asyncio
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._take(self._buffer[:nbytes])


async def relay(control: Control, port: int, to: int) -> None:
    """Pass on what comes, in one direction."""
    loop = asyncio.get_running_loop()
    onward: asyncio.Transport | None = None
    early: list[bytes] = []

    def take(data: memoryview) -> None:
        if onward is None:
            early.append(bytes(data))
        else:
            onward.write(bytes(data))

    async with await loop.create_server(lambda: _Wire(take), HOST, port):
        control.ready()
        while onward is None:
            try:
                onward, _ = await loop.create_connection(lambda: _Wire(lambda _: None), HOST, to)
            except OSError:  # the next one is not there yet
                await asyncio.sleep(0.01)
        onward.writelines(early)
        await forever()


class _Bare:
    """A way through relays: the bytes of one message go out here and come in at the sink."""

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._left = 0
        self._here: asyncio.Future[None] | None = None
        self.out: asyncio.Transport | None = None

    def came(self, data: memoryview) -> None:
        self._left -= len(data)
        if self._left == 0 and self._here is not None:
            self._here.set_result(None)

    async def trip(self) -> None:
        assert self.out is not None
        self._left, self._here = len(self._frame), asyncio.get_running_loop().create_future()
        self.out.write(self._frame)
        await self._here


async def measure(control: Control, plan: Plan) -> None:
    """Take all ways in turn, and tell the p50 of each in each round."""
    loop = asyncio.get_running_loop()
    bare = _Bare(b"x" * (HEAD + plan.size))
    payload = b"x" * plan.size
    async with (
        await loop.create_server(lambda: _Wire(bare.came), HOST, plan.sink),
        busway.connect(plan.here, name="from") as source,
        busway.connect(plan.here, name="near") as near,
        busway.connect(plan.there, name="far") as far,
        near.subscribe("hop/one", wait="cluster") as one,
        far.subscribe("hop/two", wait="cluster") as two,
    ):
        ways: dict[str, Trip] = {"one": partial(_message, source, "hop/one", payload, one)}
        ways["two"] = partial(_message, source, "hop/two", payload, two)
        for name, port in zip(("bare_one", "bare_two"), plan.relays, strict=True):
            transport, _ = await loop.create_connection(lambda: _Wire(lambda _: None), HOST, port)
            ways[name] = partial(_bare, bare, transport)
        rounds = await p50s(ways, plan.messages, plan.rounds)
    control.tell(rounds=rounds)


async def _message(source: busway.Bus, topic: str, payload: bytes, at: busway.Subscription) -> None:
    await source.publish(topic, payload)
    await at.recv()


async def _bare(bare: _Bare, transport: asyncio.Transport) -> None:
    bare.out = transport
    await bare.trip()


def main() -> None:
    role, *words = sys.argv[1:]
    control = Control()
    work: Any = (
        relay(control, *map(int, words))
        if role == "relay"
        else measure(control, msgspec.json.decode(words[0], type=Plan))
    )
    run(control, work)


if __name__ == "__main__":
    main()
