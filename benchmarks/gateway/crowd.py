"""The process with a thousand subscribers, and one that never reads if it is told so: `python -m benchmarks.gateway.crowd PLAN`.

They share the channels of one queue, ten to each, so that each message goes to one of the ten. The one that never reads has a channel
of its own, so that it is known what the others have to get: everything.
"""

import asyncio
import resource
import socket
import sys
import time

import msgspec
import uvloop

from .client import Client
from .load import parts
from .plan import Crowd
from .wire import NUMBER, frame, number, publish

_HANDLES = 4096
_STUCK = "stuck"
_UPGRADE = (
    "GET / HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Subscriber(Client):
    """One of the thousand."""

    def __init__(self, times: list[float], waits: list[float]) -> None:
        super().__init__()
        self._times = times
        self._waits = waits

    def came(self, payload: bytes) -> None:
        self._waits.append(time.perf_counter() - self._times[number(payload)])


class Gathering:
    """All of them, and who publishes."""

    def __init__(self, plan: Crowd) -> None:
        self._plan = plan
        self._times: list[float] = []
        """When each message was sent."""
        self._waits: list[float] = []
        """How long each delivery took."""
        self._subscribers: list[Subscriber] = []
        self._publisher: Client
        self._stuck: socket.socket | None = None

    async def join(self) -> None:
        plan = self._plan
        self._publisher = await Client.connect(plan.port)
        for channel in range(plan.channels):
            await self._publisher.ask(cmd="create", mq=plan.name, channel=f"c{channel}")
        await self._publisher.ask(cmd="create", mq=plan.name, channel=_STUCK)
        for place in range(plan.clients):
            one = await Subscriber.connect(plan.port, self._times, self._waits)
            await one.ask(cmd="sub", mq=plan.name, channel=f"c{place % plan.channels}")
            self._subscribers.append(one)

    async def stick(self) -> None:
        """One more, which subscribes and reads nothing any more."""
        loop = asyncio.get_running_loop()
        self._stuck = socket.socket()
        self._stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._stuck.setblocking(False)
        await loop.sock_connect(self._stuck, ("127.0.0.1", self._plan.port))
        await loop.sock_sendall(self._stuck, _UPGRADE.format(self._plan.port).encode())
        await loop.sock_recv(self._stuck, 1024)
        request = {"cmd": "sub", "mq": self._plan.name, "channel": _STUCK}
        await loop.sock_sendall(self._stuck, frame(msgspec.json.encode(request)))

    async def work(self) -> dict[str, float]:
        """Publish for a while; what the thousand got of it, and when."""
        plan, times, waits = self._plan, self._times, self._waits
        waits.clear()
        before, after = publish(plan.name, plan.size, ack=False)
        begin, first = time.perf_counter(), len(times)
        while (passed := time.perf_counter() - begin) < plan.seconds:
            while len(times) - first < passed * plan.rate:
                times.append(time.perf_counter())
                self._publisher.write(before + NUMBER % (len(times) - 1) + after)
            await asyncio.sleep(0.002)
        due = (len(times) - first) * plan.channels
        end = time.perf_counter() + plan.seconds
        while len(waits) < due and time.perf_counter() < end:  # noqa: ASYNC110, an event for each message costs what is measured
            await asyncio.sleep(0.01)
        return {"due": due, "got": len(waits)} | parts(waits)

    async def leave(self) -> None:
        if self._stuck is not None:
            self._stuck.close()


async def main(plan: Crowd) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_HANDLES, most), most))
    gathering = Gathering(plan)
    await gathering.join()
    print('{"ready":1}', flush=True)
    while (word := (await asyncio.to_thread(sys.stdin.readline)).strip()) in {"go", "stick"}:
        if word == "stick":
            await gathering.stick()
        print(msgspec.json.encode(await gathering.work()).decode(), flush=True)
    await gathering.leave()


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=Crowd)))
