"""A stream of the cluster that is not at a node any more when that is started is made there again."""

import shutil

import pytest

from busway.errors import StoreFailed
from tests.support.cluster import Cluster
from tests.support.definitions import channels, lacking, streams


async def restarted(cluster: Cluster, tmp_path, spoil=lambda _: None, **settings):
    """A node that had a stream and a channel, and was started again by itself; nobody tells it anything."""
    a = await cluster.start(data=tmp_path / "a")
    b = await cluster.start(a, data=tmp_path / "b")
    await cluster.whole()
    maker = await cluster.client(a)
    await maker.create_stream("orders", topics=["orders/**"], **settings)
    await maker.create_channel("orders", "billing", max_deliveries=3)
    assert channels(b, "orders") == {"billing"}
    await b.stop()
    spoil(tmp_path / "b" / "streams" / "orders")
    return a, await cluster.start(data=tmp_path / "b")


async def test_one_in_memory_is_back(cluster: Cluster, tmp_path):
    a, b = await restarted(cluster, tmp_path, store="memory")
    async with b.connect() as client:
        assert (await client.publish("orders/1", b"x", durable=True)).stream == "orders"
    assert streams(b) == streams(a)
    assert channels(b, "orders") == {"billing"}
    assert lacking(b) == set()


async def test_one_whose_folder_was_lost_is_back(cluster: Cluster, tmp_path):
    a, b = await restarted(cluster, tmp_path, shutil.rmtree)
    async with b.connect() as client:
        assert (await client.publish("orders/1", b"x", durable=True)).stream == "orders"
    assert streams(b) == streams(a)
    assert channels(b, "orders") == {"billing"}


async def test_one_that_is_damaged_takes_nothing_and_neither_does_another(cluster: Cluster, tmp_path):
    def spoil(folder):
        for file in folder.glob("stream.json*"):
            file.write_bytes(b"garbage")

    _, b = await restarted(cluster, tmp_path, spoil)
    async with b.connect() as client:
        with pytest.raises(StoreFailed, match="mend or remove it"):
            await client.publish("orders/1", b"x", durable=True)
    assert lacking(b) == {("orders", None), ("orders", "billing")}


async def test_one_that_was_removed_stays_away(cluster: Cluster, tmp_path):
    a = await cluster.start(data=tmp_path / "a")
    async with a.connect() as client:
        await client.create_stream("orders", topics=["orders/**"])
        await client.create_channel("orders", "billing")
        await client.remove_stream("orders")
    await a.stop()
    a = await cluster.start(data=tmp_path / "a")
    assert streams(a) == {}
    assert lacking(a) == set()
