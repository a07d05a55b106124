"""Each stored message has the safety level that it was stored with."""

import pickle

import pytest

from busway.positions import Origin, Placed, Position
from tests.support.net import PATIENCE, Net


async def test_positions_tell_how_safe_messages_are(net: Net) -> None:
    await net.serve(data=net.folder / "data")
    bus = await net.connect()
    wanted = {"m": ("memory", "written"), "w": ("disk", "written"), "s": ("disk", "synced"), "d": ("db", "written")}
    for name, (store, safety) in wanted.items():
        await bus.create_stream(name, [f"{name}/**"], store=store, safety=safety)
    expected = {"m": "memory", "w": "written", "s": "synced", "d": "written"}
    for name, level in expected.items():
        assert (await bus.publish(f"{name}/1", b"1", durable=True)).safety == level
        placed = await bus.publish_many(f"{name}/1", [b"2", b"3"], durable=True)
        assert [one.safety for one in placed] == [level, level]
        assert placed[1].safety == level
        async with bus.subscribe(f"{name}/**", since="all") as subscription:
            position = (await subscription.recv(timeout=PATIENCE)).position
            assert position is not None
            assert position.safety == level
        assert (await (await bus.stream(name)).info()).level == level


async def test_a_broker_without_a_data_folder_has_them_in_memory(net: Net) -> None:
    bus = await net.connect()
    assert (await bus.publish("a", b"1", durable=True)).safety == "memory"
    info = await bus.info()
    assert (info["storage"], info["disk"]) == ("memory", None)
    assert [one["level"] for one in info["streams"]] == ["memory"]


async def test_a_changed_level_counts_for_the_next_message(net: Net) -> None:
    await net.serve(data=net.folder / "data")
    bus = await net.connect()
    await bus.create_stream("s", ["s"])
    async with bus.subscribe("s") as subscription:
        for safety in ("written", "synced", "written"):
            await bus.update_stream("s", safety=safety)
            assert (await bus.publish("s", b"1", durable=True)).safety == safety
            position = (await subscription.recv(timeout=PATIENCE)).position
            assert position is not None
            assert position.safety == safety


def test_a_position_is_what_it_was() -> None:
    one, same = Position("0" * 32, "s", 4, 2, safety="synced"), Position("0" * 32, "s", 4, 2)
    assert one == same == ("0" * 32, "s", 4, 2)
    assert hash(one) == hash(same)
    assert str(one) == f"{'0' * 32}:4:s"
    assert Position.parse(str(one)).safety is None
    broker, stream, offset, sequence = one
    assert (broker, stream, offset, sequence, one.sequence) == ("0" * 32, "s", 4, 2, 2)
    assert one.after(3) == ("0" * 32, "s", 7, 5)
    assert one.after(3).safety == "synced"
    assert pickle.loads(pickle.dumps(one)).safety == "synced"


def test_many_positions_have_the_level_of_their_run() -> None:
    placed = Placed()
    placed.add(Position("a", "s", 0, 1, safety="written"), 2)
    placed.add(Position("a", "s", 9, 4), 1)
    assert [one.safety for one in placed] == ["written", "written", None]


@pytest.mark.parametrize(("level", "safety"), [(0, None), (1, "memory"), (5, "replicated"), (6, None), (65535, None)])
def test_levels_of_the_wire(level: int, safety: str | None) -> None:
    origin = Origin("a", "s", level)
    assert origin == ("a", "s")
    assert origin.safety == safety
    assert pickle.loads(pickle.dumps(origin)).safety == safety
