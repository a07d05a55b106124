"""MQTT through Mosquitto, where it is installed: gmqtt, the fastest asyncio client, at quality of service 0."""

import asyncio
from pathlib import Path
from typing import Any

from benchmarks.peers.load import Load
from benchmarks.peers.role import Control, forever, run

from .base import GROUP, PUBSUB, System, output, package, program


class Mosquitto(System):
    name = "mosquitto"
    works = PUBSUB | GROUP

    def version(self) -> str | None:
        server, client = program("mosquitto") or program("/usr/sbin/mosquitto"), package("gmqtt")
        return f"mosquitto {output(server, '-h').split()[2]}, gmqtt {client}" if server and client else None

    def broker(self, load: Load, folder: Path) -> list[str]:
        host, port = load.url.split(":")
        settings = folder / "mosquitto.conf"
        settings.write_text(
            f"listener {port} {host}\nallow_anonymous true\nmax_queued_messages 0\nset_tcp_nodelay true\n"
        )
        server = program("mosquitto") or program("/usr/sbin/mosquitto")
        assert server is not None
        return [server, "-c", str(settings)]

    def publish(self, load: Load, control: Control) -> None:
        async def work() -> None:
            client = await _connect(load)
            topic, payload = load.topic, load.payload
            transport = client._connection._transport  # noqa: SLF001  the client has no back pressure of its own
            control.ready_to_go()
            for chunk in control.chunks(load):
                for _ in chunk:
                    client.publish(topic, payload, qos=0)
                while transport.get_write_buffer_size():  # noqa: ASYNC110  nothing tells when it has drained
                    await asyncio.sleep(0)
            control.published()
            await forever()

        run(control, work())

    def subscribe(self, load: Load, control: Control) -> None:
        async def work() -> None:
            client = await _connect(load)
            count = 0
            with control.counting(load) as tally:

                def receive(*_message: Any) -> None:
                    nonlocal count
                    count += 1
                    if count >= tally.mark:
                        tally.note(count)

                client.on_message = receive
                client.subscribe(f"$share/{load.group}/{load.topic}" if load.group else load.topic, qos=0)
                await asyncio.sleep(0.2)  # its confirmation is only told to a callback; the harness counts every loss
                control.ready()
                try:
                    await forever()
                finally:
                    tally.count = count

        run(control, work())


async def _connect(load: Load) -> Any:
    import gmqtt

    client = gmqtt.Client(None)
    host, port = load.url.split(":")
    await client.connect(host, int(port))
    return client
