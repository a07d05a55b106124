"""Redis publish/subscribe, where redis-server is installed.

redis-py with hiredis, blocking, which is faster than its asyncio client; publishes go out in pipelines.
"""

import threading
from pathlib import Path

from benchmarks.peers.load import Load
from benchmarks.peers.role import Control

from .base import PUBSUB, System, output, package, program


class Redis(System):
    name = "redis"
    works = PUBSUB

    def version(self) -> str | None:
        server, client = program("redis-server"), package("redis")
        if not server or not client:
            return None
        return f"redis-server {output(server, '--version').split('v=')[1].split()[0]}, redis-py {client}"

    def broker(self, load: Load, folder: Path) -> list[str]:
        host, port = load.url.split(":")
        server = program("redis-server")
        assert server is not None
        unlimited = ["--client-output-buffer-limit", "pubsub", "0", "0", "0"]  # nothing is dropped
        return [server, "--bind", host, "--port", port, "--save", "", "--dir", str(folder), *unlimited]

    def publish(self, load: Load, control: Control) -> None:
        from redis import Redis as Client

        client = Client.from_url(f"redis://{load.url}")
        client.ping()
        topic, payload = load.topic, load.payload
        control.ready_to_go()
        for chunk in control.chunks(load):
            pipeline = client.pipeline(transaction=False)
            for _ in chunk:
                pipeline.publish(topic, payload)
            pipeline.execute()
        control.published()

    def subscribe(self, load: Load, control: Control) -> None:
        from redis import Redis as Client

        messages = Client.from_url(f"redis://{load.url}").pubsub(ignore_subscribe_messages=True)
        messages.subscribe(load.topic)
        messages.get_message(timeout=5)  # the confirmation
        stopped = threading.Event()
        control.on_stop(stopped.set)
        control.ready()
        count = 0
        with control.counting(load) as tally:
            mark = tally.mark
            while not stopped.is_set():
                while messages.get_message(timeout=0.1) is not None:
                    count += 1
                    if count >= mark:
                        mark = tally.note(count)
                tally.count = count
