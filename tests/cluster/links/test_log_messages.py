"""Log lines about other nodes: lost and restored links, at the same level and with the nodes' names."""

import logging

import busway
from tests.support.cluster import Cluster
from tests.support.mirrored import Mirrored
from tests.support.net import until


def warnings(caplog):
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


async def test_a_link_that_is_down_and_one_that_is_there_again(nodes: Mirrored, caplog):
    caplog.set_level(logging.INFO, "busway.cluster.links")
    a, b = await nodes.node("a"), await nodes.node("b")
    await nodes.whole(a, b)
    linked = f"cluster test: b ({b.guid[:8]}) is linked"
    await until(lambda: linked in caplog.messages)
    assert not any("linked" in one for one in warnings(caplog)), "which is as it should be"
    await b.stop()
    await until(lambda: f"cluster test: b ({b.guid[:8]}) is down: the broker stops" in warnings(caplog))
    again = await nodes.node("b")
    await nodes.whole(a, again)
    await until(lambda: f"{linked} again" in warnings(caplog))
    assert caplog.messages.count(linked) == 1


async def test_two_nodes_with_one_name_are_told_once(cluster: Cluster, caplog):
    first = await cluster.start()
    for _ in range(2):
        place = busway.Cluster(name="test", servers=list(first.addresses))
        more = busway.serve("tcp://127.0.0.1:0", name=first.name, cluster=place)
        cluster.servers.append(await cluster.stack.enter_async_context(more))
    await cluster.whole()
    told = [one for one in warnings(caplog) if f"two nodes have the name {first.name!r}" in one]
    assert len(told) == 3, "by each of them, once"
    assert first.guid[:8] in told[0]


async def test_whose_part_of_a_stream_has_no_mirror(nodes: Mirrored, caplog):
    a, b = await nodes.pair()
    c = await nodes.node("c")
    await nodes.whole(a, b, c)
    bus = await nodes.client(a, learn=False)
    for name in ("jobs", "logs"):
        await bus.create_stream(name, [name], safety="mirrored")
    await until(lambda: all("logs" in one._hub.streams.by_name for one in (b, c)))
    told = [one for one in warnings(caplog) if "with one copy" in one]
    assert sorted(told) == [
        (
            "node b mirrors 'a' but has no mirror itself: publishes here, as in stream 'jobs' with safety=mirrored,"
            " are acknowledged with one copy"
        ),
        "stream 'jobs' has safety=mirrored but node c has no mirror: publishes are acknowledged with one copy",
        "stream 'logs' has safety=mirrored but node c has no mirror: publishes are acknowledged with one copy",
    ]
