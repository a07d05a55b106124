"""Worlds in user programs: the examples of the page on testing, and brokers that start and stop."""

import asyncio
import re
from pathlib import Path

import pytest

import busway
import busway.testing
from busway.testing.simulation.world import World

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "testing.md"


def test_what_the_page_shows() -> None:
    """The page is run inside a loop, where no world can be; so its tests are run here."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names = {"busway": busway, "asyncio": asyncio}
    shown = 0
    for block in blocks:
        if re.search(r"^def test_", block, re.MULTILINE):
            exec(compile(block, str(PAGE), "exec"), names)
    for name, test in list(names.items()):
        if name.startswith("test_"):
            test()
            shown += 1
    assert shown == 2


@pytest.mark.parametrize(("safety", "power"), [("written", False), ("synced", False), ("synced", True)])
def test_a_broker_that_dies_keeps_what_it_promised(world: World, safety: str, power: bool) -> None:
    found: list[str] = []

    async def program() -> None:
        async with busway.connect("sim://b1:7420", reconnect=(0.1,)) as bus:
            await bus.create_stream("orders", topics=["orders/**"], safety=safety)
            for number in range(50):
                await bus.publish("orders/a", str(number), durable=True)
                if number % 10 == 5:
                    assert world.crash(world.nodes["b1"], power=power)
                    world.loop.call_later(1.0, world.start, world.nodes["b1"])
            stream = await bus.stream("orders")
            found.extend([message.text async for batch in stream.read() for message in batch])
        over.set()

    async def main() -> None:
        node = world.add_node("b1", busway.Settings(heartbeat=1.0), stores=True)
        world.start(node)
        await node.up.wait()
        world.launch("program", "c1", program)
        await over.wait()
        assert node.starts == 6
        assert await world.stop(node)
        assert not await world.stop(node)
        assert not world.crash(node)

    over = asyncio.Event()
    world.run(main())
    assert found == [str(number) for number in range(50)]
    assert world.loop.failures == []


def test_what_a_program_raises_ends_the_run(world: World) -> None:
    async def program() -> None:
        await asyncio.sleep(1.0)
        raise KeyError("surprise")

    async def main() -> None:
        world.launch("program", "c1", program)
        await asyncio.Event().wait()

    with pytest.raises(KeyError, match="surprise"):
        world.run(main())
    assert world.loop.time() == 1.0


def test_a_full_disk_is_told_and_gets_well(world: World) -> None:
    async def program() -> None:
        disk = world.nodes["b1"].disk
        async with busway.connect("sim://b1:7420") as bus:
            await bus.publish("a", "before", durable=True)
            disk.fail(room=0)
            with pytest.raises(busway.StoreFailed, match="no storage space"):
                await bus.publish("a", "full", durable=True)
            disk.fail()
            await asyncio.sleep(1.0)
            assert (await bus.publish("a", "after", durable=True)).offset == 1
        assert disk.failed
        over.set()

    async def main() -> None:
        node = world.add_node("b1", busway.Settings(), stores=True)
        world.start(node)
        await node.up.wait()
        world.launch("program", "c1", program)
        await over.wait()
        await world.stop(node)

    over = asyncio.Event()
    world.run(main())
    assert world.loop.failures == []


def test_a_broker_that_can_not_start_is_started_again(world: World) -> None:
    async def main() -> None:
        node = world.add_node("b1", busway.Settings(), stores=True)
        world.start(node)
        await node.up.wait()
        world.crash(node)
        node.disk.folder.rename(aside := node.disk.folder.with_name("aside"))
        node.disk.folder.write_bytes(b"no folder")
        world.start(node)
        await asyncio.sleep(5.0)
        assert not node.up.is_set()
        assert node.failed_starts > 1
        node.disk.folder.unlink()
        aside.rename(node.disk.folder)
        await node.up.wait()
        await world.stop(node)

    world.run(main())
