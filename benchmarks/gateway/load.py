"""The process that loads a server with many WebSocket clients: `python -m benchmarks.gateway.load PLAN`.

The same for both servers. Each client keeps so many messages on their way: for each message that arrives it sends another one,
or one for each eight if eight get it. What arrives in one read is followed by one write. Or, at a fixed rate, they take turns, each
sends so many messages in one write, and the time until each is acknowledged is taken.
"""

import asyncio
import sys
import time

import msgspec
import uvloop

from .client import Client
from .plan import FAN, Plan
from .wire import NUMBER, number, publish

_ACK = b'{"id":'
_TICK = 0.001
"""Seconds between two moments in which something is sent, at a fixed rate."""
_PATIENCE = 2.0
"""Seconds of silence after which what has not come is lost."""


class Worker(Client):
    """One client at work."""

    def __init__(self, plan: Plan, place: int) -> None:
        super().__init__()
        self.got = self.acks = self.sent = 0
        self.going = False
        """Whether what arrives is followed by more."""
        self.times: list[float] = []
        """When each was sent, and how long its acknowledgement took, at a fixed rate."""
        self.waits: list[float] = []
        self.mq = plan.name if plan.work != "fan" else f"{plan.name}-{place % max(plan.clients // FAN, 1)}"
        self.channel = "c" if plan.work != "fan" else f"c{place}"
        self._share = plan.share
        self._over = 0
        self._before, self._after = publish(self.mq, plan.size, ack=plan.ack)
        self._timed = bool(plan.rate)
        self._echoed = plan.kind == "echo"

    def came(self, payload: bytes) -> None:
        if not payload.startswith(_ACK):
            self.got += 1
            self._over += 1
            if not self._echoed:
                return
        else:
            self.acks += 1
        if self._timed:
            self.waits.append(time.perf_counter() - self.times[number(payload)])

    def turn(self) -> None:
        if self.going and self._over >= self._share:
            many, self._over = divmod(self._over, self._share)
            self.publish(many)

    def publish(self, many: int) -> None:
        before, after, sent = self._before, self._after, self.sent
        self.sent += many
        if self._timed:
            self.times += [time.perf_counter()] * many
        self.write(b"".join([before + NUMBER % one + after for one in range(sent, sent + many)]))


class Crew:
    """All of them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._all: list[Worker] = []

    async def join(self) -> None:
        """Connect, and subscribe."""
        plan = self._plan
        for place in range(plan.clients):
            worker = await Worker.connect(plan.port, plan, place)
            self._all.append(worker)
            if plan.kind != "echo":
                await worker.ask(cmd="create", mq=worker.mq, channel=worker.channel)
                await worker.ask(cmd="sub", mq=worker.mq, channel=worker.channel)

    async def work(self) -> dict[str, float]:
        """Load the server; what came of it."""
        plan = self._plan
        pace = asyncio.create_task(self._pace()) if plan.rate else None
        if pace is None:
            for worker in self._all:
                worker.going = True
                worker.publish(plan.depth)
        await asyncio.sleep(plan.warm)
        begin, before, skipped = time.perf_counter(), self._got(), [len(one.waits) for one in self._all]
        await asyncio.sleep(plan.seconds - plan.warm)
        seconds, got = time.perf_counter() - begin, self._got() - before
        for worker in self._all:
            worker.going = False
        if pace is not None:
            pace.cancel()
        waits = [wait for one, skip in zip(self._all, skipped, strict=True) for wait in one.waits[skip:]]
        lost, unanswered = await self._rest()
        return {"rate": got / seconds, "got": self._got(), "lost": lost, "unanswered": unanswered} | parts(waits)

    async def leave(self) -> None:
        """Leave nothing behind."""
        if self._plan.kind != "echo":
            remover = await Client.connect(self._plan.port)  # the subscribers hear that theirs are over
            for mq in {worker.mq for worker in self._all}:
                await remover.ask(cmd="remove", mq=mq)

    def _got(self) -> int:
        return sum(one.got for one in self._all)

    async def _pace(self) -> None:
        """Publish at the same rate all the time, each client in turn."""
        begin, turns, crew, depth = time.perf_counter(), 0, self._all, self._plan.depth
        while True:
            due = int((time.perf_counter() - begin) * self._plan.rate / depth)
            while turns < due:
                crew[turns % len(crew)].publish(depth)
                turns += 1
            await asyncio.sleep(_TICK)

    async def _rest(self) -> tuple[int, int]:
        """Wait for what is on its way; how many messages and how many acknowledgements did not come."""
        plan = self._plan
        last, since = -1, time.perf_counter()
        while time.perf_counter() - since < _PATIENCE:
            sent, got, acks = sum(one.sent for one in self._all), self._got(), sum(one.acks for one in self._all)
            lost = sent * plan.share - got
            unanswered = sent - acks if plan.ack and plan.kind != "echo" else 0
            if not lost and not unanswered:
                break
            if got + acks != last:
                last, since = got + acks, time.perf_counter()
            await asyncio.sleep(0.02)
        return lost, unanswered


def parts(waits: list[float]) -> dict[str, float]:
    """Percentiles, in milliseconds."""
    if not waits:
        return {}
    waits = sorted(waits)
    return {
        name: waits[min(int(len(waits) * part), len(waits) - 1)] * 1e3
        for name, part in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
    }


async def main(plan: Plan) -> None:
    crew = Crew(plan)
    await crew.join()
    print('{"ready":1}', flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    values = await crew.work()
    await crew.leave()
    print(msgspec.json.encode(values).decode(), flush=True)


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=Plan)))
