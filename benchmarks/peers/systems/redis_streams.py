"""Redis Streams with its append-only file, where redis-server is installed.

`written` is appendfsync everysec: written before it is answered, synced within a second or so; `synced` is appendfsync always. redis-py
with hiredis, blocking, which is faster than its asyncio client. Storing: pipelines of 256 XADD, or of 128 in two threads with a connection each (`halves`). Reading: XRANGE or XREAD of many.
Taking: XREADGROUP COUNT 256 and XACK of all, one after the other (`take`) or the last XACK and the next XREADGROUP in one
pipeline (`pipeline`).
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

from benchmarks.peers.load import CHUNK, IN_FLIGHT, SHARES, Load
from benchmarks.peers.role import Acknowledged, Consumed, Control

from .base import Store, program
from .redis import Redis

GROUP = "workers"
BATCH = 4096


class RedisStreams(Store):
    name = "redis-streams"
    modes: ClassVar[dict[str, Sequence[str]]] = {
        "written": ("pipeline", "halves"),
        "synced": ("pipeline", "halves"),
        "catchup": ("xrange", "xread"),
        "take": ("take", "pipeline"),
    }

    def version(self) -> str | None:
        return Redis().version()

    def broker(self, load: Load, folder: Path) -> list[str]:  # noqa: ARG002
        host, port = load.url.split(":")
        server = program("redis-server")
        assert server is not None
        data = Path(load.data)
        data.mkdir()
        sync = "always" if load.safety == "synced" else "everysec"
        stored = ["--save", "", "--appendonly", "yes", "--appendfsync", sync, "--dir", str(data)]
        return [server, "--bind", host, "--port", port, *stored]

    def append(self, load: Load, control: Control) -> None:
        clients = [_connect(load) for _ in range(SHARES if load.mode == "halves" else 1)]
        control.ready_to_go()
        acknowledged = Acknowledged(load)
        lock = Lock()

        def publish(client: Any) -> None:
            going = True
            while going:
                count = _add(client, load, IN_FLIGHT // len(clients))
                with lock:
                    going = acknowledged.add(count)

        with ThreadPoolExecutor(len(clients)) as threads:
            for done in [threads.submit(publish, client) for client in clients]:
                done.result()
        acknowledged.tell(control)
        control.tell(stored=clients[0].xlen(load.topic))

    def fill(self, load: Load, control: Control) -> None:
        client = _connect(load)
        for begin in range(0, load.messages, CHUNK):
            _add(client, load, min(CHUNK, load.messages - begin))
        client.xgroup_create(load.topic, GROUP, id="0")
        control.tell(filled=client.xlen(load.topic))

    def catch_up(self, load: Load, control: Control) -> None:
        client = _connect(load)
        consumed = Consumed(load, control)
        count, last = 0, b"0-0"
        while count < load.messages:
            if load.mode == "xread":
                [[_, entries]] = client.xread({load.topic: last}, count=BATCH)
            else:
                entries = client.xrange(load.topic, min=b"(" + last, count=BATCH)
            count += len(entries)
            last = entries[-1][0]
        consumed.over()
        consumed.tell(count)

    def take(self, load: Load, control: Control) -> None:
        client = _connect(load)
        topic, wanted = load.topic, {load.topic: ">"}
        consumed = Consumed(load, control)
        count = 0
        if load.mode == "pipeline":
            done: list[bytes] = []
            while count < load.messages:
                pipeline = client.pipeline(transaction=False)
                if done:
                    pipeline.xack(topic, GROUP, *done)
                pipeline.xreadgroup(GROUP, "one", wanted, count=IN_FLIGHT)
                [[_, entries]] = pipeline.execute()[-1]
                done = [number for number, _ in entries]
                count += len(done)
            client.xack(topic, GROUP, *done)
        else:
            while count < load.messages:
                [[_, entries]] = client.xreadgroup(GROUP, "one", wanted, count=IN_FLIGHT)
                client.xack(topic, GROUP, *[number for number, _ in entries])
                count += len(entries)
        consumed.over()
        consumed.tell(count, client.xpending(topic, GROUP)["pending"])


def _connect(load: Load) -> Any:
    from redis import Redis as Client

    client = Client.from_url(f"redis://{load.url}")
    client.ping()
    return client


def _add(client: Any, load: Load, count: int) -> int:
    """Store so many in one pipeline; how many were answered with their id."""
    fields = {"payload": load.payload}
    pipeline = client.pipeline(transaction=False)
    for _ in range(count):
        pipeline.xadd(load.topic, fields)
    return len(pipeline.execute())
