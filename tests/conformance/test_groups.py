"""Groups share the work: each message goes to one member of each group."""

from contextlib import AsyncExitStack

import pytest

import busway
from tests.support.net import Net, payloads, rest, settle

pytestmark = pytest.mark.both_loops

MESSAGES = 400


Member = tuple[busway.Bus, busway.Subscription]


async def members(net: Net, stack: AsyncExitStack, count: int, group: str) -> list[Member]:
    buses = [await net.connect() for _ in range(count)]
    return [(bus, await stack.enter_async_context(bus.subscribe("jobs/*", group=group))) for bus in buses]


async def test_each_message_goes_to_one_member_and_all_members_are_used(net: Net) -> None:
    publisher = await net.connect()
    async with AsyncExitStack() as stack:
        group = await members(net, stack, 4, "workers")
        await publisher.publish_many([(f"jobs/{number % 5}", str(number)) for number in range(MESSAGES)])
        await publisher.flush()
        shares = [await drained(member) for member in group]
        assert sorted(int(job) for share in shares for job in share) == list(range(MESSAGES))
        assert all(shares), f"a member got nothing: {[len(share) for share in shares]}"
        assert max(map(len, shares)) <= MESSAGES // 2  # nobody does most of it alone


async def drained(member: Member) -> list[bytes]:
    bus, subscription = member
    await bus.flush()
    return [message.payload for message in await rest(subscription)]


async def test_groups_are_independent_of_each_other_and_of_single_subscribers(net: Net) -> None:
    publisher, single = await net.connect(), await net.connect()
    async with AsyncExitStack() as stack:
        red = await members(net, stack, 2, "red")
        blue = await members(net, stack, 3, "blue")
        alone = await stack.enter_async_context(single.subscribe("jobs/*"))
        assert await publisher.publish("jobs/1", b"first", confirm=True) == 3
        await publisher.publish_many("jobs/1", [str(number) for number in range(60)])
        await publisher.flush()
        for group in (red, blue):
            assert sum([len(await drained(member)) for member in group]) == 61
        assert len(await drained((single, alone))) == 61


async def test_a_member_may_belong_to_several_groups_on_one_connection(net: Net) -> None:
    bus, other = await net.connect(), await net.connect()
    async with (
        bus.subscribe("t", group="a") as in_a,
        bus.subscribe("t", group="b") as in_b,
        bus.subscribe("t") as alone,
    ):
        assert await other.publish("t", b"x", confirm=True) == 1
        for subscription in (in_a, in_b, alone):
            assert await payloads(subscription, 1) == [b"x"]


async def test_two_members_of_one_group_on_one_connection_get_one_copy_together(net: Net) -> None:
    bus, other = await net.connect(), await net.connect()
    async with bus.subscribe("t", group="g") as one, bus.subscribe("t", group="g") as two:
        await other.publish_many("t", [b"x"] * 100)
        await settle(other, bus)
        assert one.pending + two.pending == 100
        assert one.pending
        assert two.pending


async def test_a_group_spans_patterns(net: Net) -> None:
    first, second, publisher = await net.connect(), await net.connect(), await net.connect()
    async with first.subscribe("a/*", group="g") as one, second.subscribe("re:a/.*", group="g") as two:
        await publisher.publish_many("a/b", [b"x"] * 100)
        await settle(publisher, first, second)
        assert one.pending + two.pending == 100
        assert one.pending
        assert two.pending


async def test_a_member_that_leaves_gets_nothing_more_and_the_others_take_over(net: Net) -> None:
    publisher, stays, goes = await net.connect(), await net.connect(), await net.connect()
    async with stays.subscribe("t", group="g") as staying:
        async with goes.subscribe("t", group="g"):
            pass
        await publisher.publish_many("t", [b"x"] * 50)
        assert await payloads(staying, 50) == [b"x"] * 50
        async with goes.subscribe("t", group="g"):
            await goes.close()
            await publisher.publish_many("t", [b"y"] * 50)
            assert await payloads(staying, 50) == [b"y"] * 50


async def test_no_echo_in_a_group_passes_the_message_to_another_member(net: Net) -> None:
    publisher, other = await net.connect(), await net.connect()
    async with publisher.subscribe("t", group="g", echo=False) as own, other.subscribe("t", group="g") as theirs:
        await publisher.publish_many("t", [b"x"] * 20)
        assert await payloads(theirs, 20) == [b"x"] * 20
        await settle(publisher)
        assert own.pending == 0
