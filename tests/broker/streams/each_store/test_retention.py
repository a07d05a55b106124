"""Retention over every store: a stream keeps messages that its channel has not finished, beyond its limits."""

import asyncio
import logging
from typing import Any

import pytest

from tests.support.net import until, within
from tests.support.stream_kits import Place

COUNT = 5000
KEPT = 1000
SLACK = 256
"""A disk removes whole buckets."""


async def held(place: Place, name: str = "few") -> dict[str, Any]:
    """Figures once the stream has looked for old messages and found some that it has to hold."""
    stream = place.stream(name)

    async def look() -> None:
        stream.trim(0)
        await asyncio.sleep(0.001)

    await look()
    await until(lambda: stream.figures()["held"] >= COUNT - KEPT - 2 * SLACK, look)
    return stream.figures()


async def fill(place: Place, name: str = "few", **settings: Any) -> None:
    await place.make(name, retain_until="archived", **settings)
    bus = await place.connect()
    await within(bus.publish_many(f"{name}/a", [b"%04d" % n for n in range(COUNT)], durable=True))


async def test_nothing_leaves_before_its_channel_has_done_it(
    bus_with_stream: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place = bus_with_stream
    await fill(place, max_count=KEPT)
    bus, stream = await place.connect(), place.stream("few")
    for _ in range(2):
        figures = await held(place)
        assert (stream.first, figures["retain_until"]) == (0, "archived")
        assert figures["held_bytes"] > figures["held"]
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text for text in told if "no such channel" in text] == [
        (
            "stream 'few' removes no message before its channel 'archived' has finished it, and there is no such channel: "
            "create it, or change retain_until"
        )
    ]
    assert len([text for text in told if "beyond its limits" in text]) == 1

    await within(bus.create_channel("few", "archived", start="first"))
    since = (await held(place))["held_since"]
    assert (stream.first, since) == (0, figures["held_since"])

    await within(bus.seek_channel("few", "archived", 2000))
    await place.trim("few", "0.001s", 2000 - SLACK)
    assert stream.first <= 2000
    assert (await place.stored("few/**"))[0].offset == stream.first

    await within(bus.seek_channel("few", "archived", COUNT))
    await place.trim("few", "0.001s", COUNT - KEPT - SLACK)
    assert stream.first <= COUNT - KEPT
    await until(lambda: stream.figures()["held"] == 0)
    info = await (await bus.stream("few")).info()
    assert (info.held, info.held_bytes, info.held_since, info.retain_until) == (0, 0, None, "archived")


@pytest.mark.parametrize("limit", [{"max_bytes": 65536}, {"max_age": "1h"}])
async def test_neither_bytes_nor_age_remove_it(bus_with_stream: Place, limit: dict[str, Any]) -> None:
    place = bus_with_stream
    await fill(place, **limit)
    bus, stream = await place.connect(), place.stream("few")
    await within(bus.create_channel("few", "archived", start="first"))

    async def look() -> None:
        stream.trim(2**62)  # long after
        await asyncio.sleep(0.001)

    await until(lambda: stream.figures()["held"] > 0, look)
    assert stream.first == 0
    await within(bus.update_stream("few", retain_until=None))
    await until(lambda: stream.first > 0, look)


async def test_it_is_held_over_a_restart(lasting: Place) -> None:
    place = lasting
    await fill(place, max_count=KEPT)
    bus = await place.connect()
    await within(bus.create_channel("few", "archived", start="first"))
    await within(bus.seek_channel("few", "archived", 1500))
    await place.restart()
    await within(bus.publish_many("few/a", [b""] * 3000, durable=True))  # a disk looks by itself after so many
    await place.trim("few", "0.001s", 1500 - SLACK)
    assert place.stream("few").first <= 1500
    assert (await (await bus.stream("few")).info()).retain_until == "archived"
