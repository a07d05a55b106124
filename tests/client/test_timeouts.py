"""The `timeout=` of calls that wait for an acknowledgement, with and without a connection."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

import busway
import busway.sync
from tests.support.net import PATIENCE, until, within

BACK = [0.01]


class Broker:
    """One that can be stopped, started again, and made to store nothing for a while."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix:{folder / 'bus'}"
        self._data = folder / "data"
        self.server: busway.Server

    async def start(self) -> None:
        self.server = await within(busway.serve(self.address, data=self._data).start())

    async def stop(self) -> None:
        await within(self.server.stop(drain=0))

    def rest(self, *, yes: bool) -> None:
        """Take nothing into the stream `default`: publishes wait, as for a disk that is slow."""
        hub = self.server._hub
        assert hub is not None
        stream = hub.streams.get("default")
        stream.log.rest(yes)
        hub.runtime.handle(hub.engine.commit(stream.number))
        hub.flush()

    async def stored(self, bus: busway.Bus) -> list[bytes]:
        stream = await bus.stream("default")
        return [one.payload async for batch in stream.read() for one in batch]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path)
    await broker.start()
    yield broker
    await broker.stop()


@pytest.mark.parametrize("timeout", [0.05, "50ms", timedelta(milliseconds=50)])
async def test_a_message_that_was_not_sent_is_withdrawn(broker: Broker, timeout: float | str | timedelta) -> None:
    async with busway.connect(broker.address, reconnect=BACK) as bus:
        await broker.stop()
        await until(lambda: bus.state != "connected")
        with pytest.raises(busway.Timeout, match=r"'a' was not acknowledged within 0.05 s: not sent, and will not be"):
            await within(bus.publish("a", b"1", durable=True, timeout=timeout))
        with pytest.raises(busway.Timeout, match=r"3 of 3 messages on 'a' .* 3 not sent, and will not be stored"):
            await within(bus.publish_many("a", [b"2"] * 3, durable=True, timeout=timeout))
        await broker.start()
        await within(bus.publish("a", b"3", durable=True, timeout=PATIENCE))
        assert await broker.stored(bus) == [b"3"]


async def test_a_message_that_was_sent_may_still_be_stored(broker: Broker) -> None:
    async with busway.connect(broker.address, reconnect=BACK) as bus:
        broker.rest(yes=True)
        with pytest.raises(busway.Timeout, match="sent, and may still be stored"):
            await within(bus.publish("a", b"1", durable=True, timeout=0.05))
        broker.rest(yes=False)
        await within(bus.publish("a", b"2", durable=True))
        assert await broker.stored(bus) == [b"1", b"2"]


async def test_a_message_that_was_sent_is_sent_again_after_a_restart(broker: Broker) -> None:
    async with busway.connect(broker.address, reconnect=BACK) as bus:
        broker.rest(yes=True)
        with pytest.raises(busway.Timeout, match="may still be stored"):
            await within(bus.publish("a", b"1", durable=True, timeout=0.05))
        await broker.stop()
        await broker.start()
        await within(bus.publish("a", b"2", durable=True))
        assert await broker.stored(bus) == [b"1", b"2"]


async def test_many_of_which_some_are_stored(broker: Broker) -> None:
    async with busway.connect(broker.address, reconnect=BACK) as bus:
        await bus.publish_many("a", [b"0"] * 10, durable=True, timeout=PATIENCE)
        broker.rest(yes=True)
        with pytest.raises(busway.Timeout, match=r"5 of 5 messages on 'a' .* 5 sent, and may still be stored"):
            await within(bus.publish_many("a", [b"1"] * 5, durable=True, timeout=0.05))
        broker.rest(yes=False)
        await within(bus.publish("a", b"2", durable=True))
        assert await broker.stored(bus) == [b"0"] * 10 + [b"1"] * 5 + [b"2"]


async def test_an_acknowledgement_in_time(broker: Broker) -> None:
    async with busway.connect(broker.address) as bus:
        assert (await bus.publish("a", b"1", durable=True, timeout="1m")).offset == 0
        assert len(await bus.publish_many("a", [b"1"] * 3, durable=True, timeout="1m")) == 3
        await bus.post("p", b"1", timeout="1m")
        await bus.pin("q", b"1", timeout=60)
        assert await bus.unpost("p", timeout="1m")
        assert await bus.unpin("q", timeout=60)


async def test_the_blocking_face(broker: Broker) -> None:
    def use() -> None:
        with busway.sync.connect(broker.address) as bus:
            assert bus.publish("a", b"1", durable=True, timeout="1m").offset == 0
            assert len(bus.publish_many("a", [b"1"], durable=True, timeout="1m")) == 1
            bus.post("p", b"1", timeout="1m")
            bus.pin("q", b"1", timeout="1m")
            assert bus.unpost("p", timeout="1m")
            assert bus.unpin("q", timeout="1m")
            broker.server._hub.loop.call_soon_threadsafe(lambda: broker.rest(yes=True))  # type: ignore[union-attr]
            bus.rtt()
            with pytest.raises(busway.Timeout, match="may still be stored"):
                bus.publish("a", b"1", durable=True, timeout=0.05)

    await within(asyncio.to_thread(use))
    broker.rest(yes=False)


@pytest.mark.parametrize("timeout", [0, -1, "soon", "", True, [1]])
async def test_what_is_no_timeout(broker: Broker, timeout: object) -> None:
    async with busway.connect(broker.address) as bus:
        for call in (
            lambda: bus.publish("a", b"1", durable=True, timeout=timeout),  # type: ignore[call-overload]
            lambda: bus.publish_many("a", [b"1"], durable=True, timeout=timeout),  # type: ignore[call-overload]
            lambda: bus.post("a", b"1", timeout=timeout),  # type: ignore[arg-type]
            lambda: bus.pin("a", b"1", timeout=timeout),  # type: ignore[arg-type]
        ):
            with pytest.raises((ValueError, TypeError), match="timeout"):
                await call()


async def test_only_stored_messages_have_a_timeout(broker: Broker) -> None:
    async with busway.connect(broker.address) as bus:
        with pytest.raises(ValueError, match="durable=True"):
            await bus.publish("a", b"1", timeout=1)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="durable=True"):
            await bus.publish_many("a", [b"1"], timeout=1)  # type: ignore[call-overload]
