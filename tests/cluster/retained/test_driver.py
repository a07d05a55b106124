"""Posts and pins reach who has subscribed at another node, whenever the nodes hear of each other, and none of them twice."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from busway._core import hold_clock
from busway.testing import FaultProxy
from tests.support.cluster import has
from tests.support.net import eventually


async def before(client, subscription, end):
    """What a subscription has got before a message that is published now and then, until it comes through."""
    got = []

    async def said():
        await client.publish(end, b"end")
        try:
            while (message := await subscription.recv(timeout=0.2)).topic != end:
                got.append((message.kind, message.topic, message.text))
        except TimeoutError:
            return False
        return True

    await eventually(said)
    return got


@pytest.mark.parametrize("kind", ["post", "pin"])
@pytest.mark.parametrize("wait", [None, "cluster"])
async def test_who_subscribes_while_it_is_on_its_way_gets_it_once(cluster, kind, wait):
    a, _b, c = await cluster.several(3)
    near, far = await cluster.client(a), await cluster.client(c)
    for number in range(40):
        topic = f"state/{number}"
        keep = asyncio.ensure_future(getattr(near, kind)(topic, b"up"))
        if number % 2:
            await keep  # its node has it, and tells the others
        async with far.subscribe(topic, wait=wait) as states:
            await keep
            assert (await states.recv(timeout=60)).kind == kind
            await has(far, topic, b"up")
            await far.publish(topic, b"end")
            assert (await states.recv(timeout=60)).text == "end", "it came twice"


async def test_who_was_there_before_the_nodes_were_linked_gets_it(cluster):
    one, two = await cluster.start(), await cluster.start()
    reader, writer = await cluster.client(one), await cluster.client(two, name="writer")
    async with reader.subscribe("k/**", watch=True) as states, reader.subscribe("k/**", group="g") as shared:
        await writer.post("k/post", b"x")
        await writer.pin("k/pin", b"y")
        await writer.post("k/gone", b"z")
        await writer.unpost("k/gone")
        await cluster.start(one, two)
        await cluster.whole()
        kept = {("post", "k/post", "x"), ("pin", "k/pin", "y")}
        for subscription in (states, shared):
            got = [await subscription.recv(timeout=60) for _ in range(2)]
            assert {(message.kind, message.topic, message.text) for message in got} == kept
        assert await before(reader, states, "k/end") == [], "nothing twice, and no end of what it never had"


async def test_what_was_pinned_while_the_nodes_were_apart_takes_the_place_of_the_old(cluster):
    one = await cluster.start()
    async with FaultProxy(one.addresses[0]) as proxy:
        way = SimpleNamespace(addresses=[proxy.address])
        two = await cluster.start(way, place={"advertise": ["tcp://127.0.0.1:9"]})
        await cluster.whole()
        reader, writer = await cluster.client(one), await cluster.client(two, name="manager")
        async with reader.subscribe("config/**", wait="cluster", watch=True) as config:
            await writer.pin("config/x", "old")
            await writer.pin("config/same", "same")
            await writer.post("config/gone", "gone")
            assert [(await config.recv(timeout=60)).text for _ in range(3)] == ["old", "same", "gone"]
            proxy.refusing = True
            proxy.reset()

            async def apart():
                return not (one.stats()["links"] or two.stats()["links"])

            await eventually(apart)
            await writer.pin("config/x", "newer")
            await writer.pin("config/x", "newest")
            await writer.unpost("config/gone")
            proxy.refusing = False
            await cluster.whole()
            got = {((message := await config.recv(timeout=60)).kind, message.text) for _ in range(2)}
            assert got == {("pin", "newest"), ("withdrawn", "gone")}
            assert await before(reader, config, "config/end") == [], "what it had does not come again"


async def test_it_comes_in_its_place_among_what_its_client_publishes(cluster):
    a, b = await cluster.several(2)
    near, far = await cluster.client(a), await cluster.client(b)
    async with far.subscribe("t", wait="cluster") as messages:
        for number in range(60):
            match number % 3:
                case 0:
                    await near.publish("t", str(number))
                case 1:
                    await near.pin("t", str(number))
                case 2:
                    await near.post("t", str(number))
        got = [int((await messages.recv(timeout=60)).text) for _ in range(60)]
        assert got == list(range(60))


async def test_one_member_of_a_group_in_the_whole_mesh_gets_it_a_near_one_first(cluster):
    a, b, c = await cluster.several(3)
    near, *far = [await cluster.client(server) for server in (a, b, c)]
    members = [await client.subscribe("jobs", group="g", wait="cluster") for client in far]
    alone = [await client.subscribe("jobs", wait="cluster") for client in far]
    for number in range(20):
        await near.post("jobs", str(number), fields={"n": number})
    for one in alone:
        assert [(await one.recv(timeout=60)).text for _ in range(20)] == [str(number) for number in range(20)]
    await near.request("$bus/info")
    taken = []

    async def all_taken():
        for one in members:
            while one.received > sum(who is one for who, _ in taken):
                taken.append((one, (await one.recv(timeout=60)).text))
        return len(taken) >= 20

    await eventually(all_taken)
    for client in far:  # everything that was under way is there
        await near.publish("end", b"")
        async with client.subscribe("jobs", wait="cluster"):
            pass
    assert sorted(int(text) for _, text in taken) == list(range(20))
    assert [one.received for one in members] == [10, 10], "in turn"
    mine = await near.subscribe("jobs", group="g")
    while await mine.recv(timeout=60) and mine.received < 20:
        pass  # what was kept when it came
    await near.post("jobs", b"for the near one")
    while (await mine.recv(timeout=60)).text != "for the near one":
        pass
    for one in alone:
        assert (await one.recv(timeout=60)).text == "for the near one"
    assert [one.received for one in members] == [10, 10]
    for one in (*members, *alone, mine):
        await one.close()


async def test_the_fields_of_the_server_where_it_was_sent_are_those_that_everybody_sees(cluster):
    a = await cluster.start(fields={"region": "emea"})
    b = await cluster.start(a, fields={"region": "apac"})
    await cluster.whole()
    near, far = await cluster.client(a), await cluster.client(b)
    async with far.subscribe("state", where={"region": "emea"}, wait="cluster") as states:
        await near.post("state", b"up")
        assert (await states.recv(timeout=60)).fields == {"region": "emea"}
    assert [message.fields for message in await far.kept("state")] == [{"region": "emea"}]


async def test_a_client_that_comes_back_elsewhere_does_not_get_again_what_it_had(cluster):
    a, b = await cluster.several(2)
    near = await cluster.client(a)
    moving = await cluster.client(b, name="moving")
    events = moving.events()
    async with moving.subscribe("state/**", wait="cluster", watch=True) as states:
        await near.post("state/1", b"one")
        await near.pin("state/2", b"two")
        assert [(await states.recv(timeout=60)).text for _ in range(2)] == ["one", "two"]
        await b.stop()
        async for event in events:
            if event.kind == "resumed":
                break
        await near.post("state/1", b"changed")
        assert (await states.recv(timeout=60)).text == "changed"
        assert await before(near, states, "state/end") == []


HOUR = 3600 * 10**9


@pytest.fixture
def clock():
    """Sets the clock of the engine by nanoseconds ahead of the true one; in the end it is right again."""
    yield lambda ahead: hold_clock(time.time_ns() + ahead)
    hold_clock(0)


@pytest.mark.parametrize("stores", [False, True])
async def test_a_pin_replaces_one_of_a_clock_that_is_ahead(cluster, clock, tmp_path, stores):
    """Who pins last has the last word, and was told so: nobody's clock takes that back."""
    folders = [tmp_path / name if stores else None for name in "ab"]
    a = await cluster.start(data=folders[0])
    b = await cluster.start(a, data=folders[1])
    await cluster.whole()
    ahead, right = await cluster.client(a, name="cfg"), await cluster.client(b, name="cfg")
    clock(HOUR)
    await ahead.pin("cfg/k", b"of tomorrow")
    await has(right, "cfg/k", b"of tomorrow")
    clock(0)
    await right.pin("cfg/k", b"of today")
    for client in (right, ahead):
        await has(client, "cfg/k", b"of today")
    assert (await right.kept("cfg/k"))[0].time_ns < time.time_ns() + HOUR / 2, "its time is that of its sender"
    clock(HOUR)
    await ahead.unpin("cfg/k")
    clock(0)

    async def gone():
        return not await right.kept("cfg/k")

    await eventually(gone)
    await right.pin("cfg/k", b"again")
    for client in (right, ahead):
        await has(client, "cfg/k", b"again")
    third = await cluster.start(a, b)  # hears it from both
    await cluster.whole()
    await has(await cluster.client(third), "cfg/k", b"again")
    if stores:
        await b.stop()
        again = await cluster.start(a, data=folders[1])
        await cluster.whole(a, third, again)
        await has(await cluster.client(again), "cfg/k", b"again")
