"""Clients are informed when their server lost a link, since messages published at the other node are missing."""

from types import SimpleNamespace

from busway.testing import FaultProxy
from tests.support.cluster import links
from tests.support.connection_events import next_event
from tests.support.net import eventually, settle


async def test_who_was_cut_off_is_told_on_both_sides(cluster):
    nowhere = {"advertise": ["tcp://127.0.0.1:9"]}  # so that there is one way only
    one = await cluster.start(place=nowhere)
    async with FaultProxy(one.addresses[0]) as proxy:
        two = await cluster.start(SimpleNamespace(addresses=[proxy.address]), place=nowhere)
        await cluster.whole()
        near, far = await cluster.client(one), await cluster.client(two)
        heard = [client.events() for client in (near, far)]
        async with (
            far.subscribe("live/**", wait="cluster") as live,
            far.subscribe("live/**", scope="local") as local,
            far.subscribe("live/**", since="all") as stored,
        ):
            proxy.refusing = True
            proxy.reset()

            async def apart():
                return not links(one) and not links(two)

            await eventually(apart)
            await near.publish("live/lost", b"")
            assert live.interrupted == 0, "it is told when it is over"
            proxy.refusing = False
            await cluster.whole()
            counts = [(await next_event(events, "apart")).count for events in heard]
            assert counts == [0, 1], "of those who have subscriptions to what others publish"
            assert (live.interrupted, local.interrupted, stored.interrupted) == (1, 0, 0)
            await near.publish("live/end", b"")
            assert (await live.recv(timeout=60)).topic == "live/end"


async def test_who_stops_leaves_nobody_behind_who_could_have_published(cluster):
    one, two = await cluster.several(2)
    bus = await cluster.client(one)
    events = bus.events()
    async with bus.subscribe("live/**") as live:
        await two.stop()
        third = await cluster.start(one)
        await cluster.whole(one, third)
        await next_event(events, "servers")
        await settle(bus)
        assert live.interrupted == 0
