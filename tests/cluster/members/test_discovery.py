"""Nodes that find each other by multicast DNS, on the loopback interface."""

import subprocess
import sys
import uuid
from contextlib import AsyncExitStack

import pytest

import busway
from busway.cluster.members.dialer import HINTS
from busway.cluster.members.discovery import TYPE, Discovery, addresses_of
from busway.cluster.members.membership import FORGET, Membership
from busway.cluster.node import Node
from tests.support.cluster import links
from tests.support.net import until

ME = Node("0" * 32, 1, "shop", "me", ("tcp://127.0.0.1:7420",), 1)
HERE = ("127.0.0.1",)


@pytest.fixture
def shop():
    """A cluster that nobody else on this host has, who may run the same tests."""
    return f"shop-{uuid.uuid4()}"


async def start(stack, name, cluster, **more):
    place = busway.Cluster(name=cluster, discover=HERE, **more)
    return await stack.enter_async_context(busway.serve("tcp://127.0.0.1:0", name=name, cluster=place))


async def test_nodes_find_each_other_without_a_list(shop):
    async with AsyncExitStack() as stack:
        servers = [await start(stack, f"n{number}", shop) for number in range(3)]
        other = await start(stack, "other", f"{shop}-other")
        guids = {one.guid for one in servers}
        await until(lambda: all(links(one) == guids - {one.guid} for one in servers))
        assert links(other) == set()
        assert other._hub.peers.members.reports.refused == 0  # it was not even dialled


async def test_what_is_heard_is_not_trusted(shop):
    """Who announces itself for the cluster and has not its key stays outside."""
    async with AsyncExitStack() as stack:
        inside = await start(stack, "inside", shop, key="secret")
        outside = await start(stack, "outside", shop, key="guessed")
        await until(lambda: inside._hub.peers.members.reports.refused and outside._hub.peers.members.reports.refused)
        assert links(inside) == links(outside) == set()


async def test_a_node_that_listens_on_nothing_that_can_be_told_only_looks(shop, tmp_path, caplog):
    async with AsyncExitStack() as stack:
        place = busway.Cluster(name=shop, discover=HERE)
        looks = await stack.enter_async_context(busway.serve(f"unix:{tmp_path / 'bus'}", cluster=place))
        await until(lambda: "it only finds others" in caplog.text)
        other = await start(stack, "n", shop)
        await until(lambda: links(looks) == {other.guid})


async def test_a_network_without_it_is_told(caplog, monkeypatch):
    def fail(**_):
        raise OSError("no multicast here")

    monkeypatch.setattr("zeroconf.asyncio.AsyncZeroconf", fail)
    discovery = Discovery(ME, lambda _: None)
    await discovery.start()
    assert "discovery does not work: no multicast here" in caplog.text
    await discovery.stop()


def said(**more: str | None) -> dict[bytes, bytes | None]:
    given = {"cluster": "shop", "guid": "1" * 32, "address0": "tcp://10.0.0.1:7420"} | more
    return {name.encode(): None if value is None else value.encode() for name, value in given.items()}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (said(), ["tcp://10.0.0.1:7420"]),
        (said(address1="tls://10.0.0.1:7421"), ["tcp://10.0.0.1:7420", "tls://10.0.0.1:7421"]),
        (said(cluster="other"), []),
        (said(cluster=None), []),
        (said(guid=ME.guid), []),
        (said(guid=None), []),
        (said(address0="nonsense"), []),
        (said(address0="unix:/tmp/x"), []),
        (said(address0="memory:x"), []),
        ({b"\xff\xfe": b"\xff", b"cluster": b"\xff\x00"}, []),
        ({}, []),
    ],
)
def test_announcements(given, found):
    assert addresses_of(given, ME) == found


def test_hearsay_is_bounded_and_forgotten():
    members = Membership(ME, chance=lambda: 0.5)
    members.start(0.0)
    for number in range(1000):
        members.hint(f"tcp://10.{number // 250}.0.{number % 250}:1", 1.0)
    assert len(members._dialer.targets) == HINTS
    members.hint(ME.addresses[0], 1.0)
    assert ME.addresses[0] not in members._dialer.targets
    for action in members.take():
        members.failed(action.attempt, 2.0, "nobody")
    assert members.missing == []
    members.tick(2.0 + FORGET)
    assert members._dialer.targets == {}


def test_the_type_is_that_of_the_page():
    assert TYPE == "_busway._tcp.local."


def test_without_the_extra_it_says_what_to_install():
    program = (
        "import sys; sys.modules['zeroconf'] = None\n"
        "import busway\n"
        "busway.Cluster(name='x')\n"
        "try: busway.Cluster(name='x', discover=True)\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "discovery needs zeroconf: pip install 'zeroconf>=0.132'\n"
