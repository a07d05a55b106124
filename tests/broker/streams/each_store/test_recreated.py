"""A stream that is removed and created again: an old position never means another message, and its reader misses
nothing.
"""

import shutil
from pathlib import Path

import busway
from tests.support.net import PATIENCE, within
from tests.support.stream_kits import Place


async def test_who_kept_a_position_misses_nothing_of_a_stream_that_is_made_again(bus_with_stream: Place) -> None:
    place = bus_with_stream
    bus = await place.connect()
    await within(bus.publish_many("orders/a", [b"%d" % n for n in range(5)], durable=True))
    async with bus.subscribe("orders/**", since="all") as subscription:
        while (await subscription.recv(timeout=PATIENCE)).payload != b"4":
            pass
        kept = subscription.position
    await place.remove("orders")
    await place.make()
    await within(bus.publish_many("orders/a", [b"new 1", b"new 2"], durable=True))
    async with bus.subscribe("orders/**", since=kept) as subscription:
        await within(bus.publish("orders/a", b"new 3", durable=True))
        got = [(await subscription.recv(timeout=PATIENCE)).payload for _ in range(3)]
        assert got == [b"new 1", b"new 2", b"new 3"]
        assert subscription.lost == 0


async def test_it_goes_on_after_a_restart_too(lasting: Place) -> None:
    place = lasting
    bus = await place.connect()
    first = await within(bus.publish("orders/a", b"1", durable=True))
    await place.remove("orders")
    await place.restart()
    await place.make()
    bus = await place.connect()
    again: busway.Position = await within(bus.publish("orders/a", b"2", durable=True))
    assert again.offset > first.offset
    await place.restart()
    bus = await place.connect()
    third = await within(bus.publish("orders/a", b"3", durable=True))
    assert (third.offset, third.sequence) == (again.offset + 1, 2)


async def test_a_stream_in_memory_goes_on_where_it_ended(tmp_path: Path) -> None:
    """The broker is the same after a restart, so its places have to be others."""
    offsets = []
    for _ in range(3):
        async with busway.serve(data=tmp_path) as server, server.connect() as bus:
            await bus.create_stream("quick", ["quick"], store="memory")
            offsets += [one.offset for one in await bus.publish_many("quick", [b""] * 3, durable=True)]
    assert offsets == list(range(9))


async def test_a_stream_in_memory_gives_no_offset_twice_after_a_crash(tmp_path: Path) -> None:
    async with busway.serve(data=tmp_path / "one") as server, server.connect() as bus:
        await bus.create_stream("quick", ["quick"], store="memory")
        before = (await bus.publish("quick", b"", durable=True)).offset
        shutil.copytree(tmp_path / "one", tmp_path / "two")  # as a crash would leave it
    async with busway.serve(data=tmp_path / "two") as server, server.connect() as bus:
        await bus.create_stream("quick", ["quick"], store="memory")
        assert (await bus.publish("quick", b"", durable=True)).offset > before
