"""Channels of three nodes."""

import pytest

from tests.support.cluster import Cluster
from tests.support.net import eventually


@pytest.fixture
async def three(cluster: Cluster):
    servers = await cluster.several(3)
    clients = [await cluster.client(server) for server in servers]
    await clients[0].create_stream("jobs", topics=["jobs/**"])
    return servers, clients


async def drained(*servers):
    """Every part of the channel is done with everything."""

    async def done():
        lags = []
        for server in servers:
            number = server._hub.streams.by_name["jobs"].number
            lags += [one["lag"] for one in server._hub.channels.figures(number)]
        return not any(lags)

    await eventually(done)
