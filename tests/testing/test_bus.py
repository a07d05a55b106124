"""busway.testing for users: a private bus, as a context manager and as a fixture."""

import busway
from busway.testing.plugin import bus  # noqa: F401, a fixture is used by its name
from tests.support.net import PATIENCE, payloads


async def test_the_bus_is_a_real_one() -> None:
    async with busway.testing.bus() as one, one.subscribe("hello/*") as hellos:
        await one.publish("hello/alice", b"hi")
        assert (await hellos.recv(timeout=PATIENCE)).topic == "hello/alice"
    assert one.state == "closed"


async def test_two_are_strangers() -> None:
    async with busway.testing.bus() as one, busway.testing.bus() as two, one.subscribe("**"):
        assert await two.publish("t", b"", confirm=True) == 0


async def test_several_clients_of_one_server() -> None:
    async with busway.testing.buses(3, name="c") as (first, second, third), first.subscribe("t") as subscription:
        assert [each.name for each in (first, second, third)] == ["c", "c-2", "c-3"]
        await second.publish("t", b"2")
        assert await payloads(subscription, 1) == [b"2"]


async def test_settings_are_passed_on() -> None:
    async with busway.testing.bus(settings=busway.Settings(topic=10)) as one:
        assert one.server["limits"]["topic"] == 10


async def test_the_fixture(bus: busway.Bus) -> None:  # noqa: F811, the fixture
    async with bus.subscribe("t") as subscription:
        await bus.publish("t", b"x")
        assert await payloads(subscription, 1) == [b"x"]
