"""Several nodes in this process, and helpers that inspect them."""

import asyncio
from contextlib import AsyncExitStack

import pytest

import busway
from tests.support.net import eventually

FAST = (0.02, 0.05, 0.1)


class Cluster:
    """Brokers of one cluster that come and go."""

    def __init__(self, stack, name="test", **more):
        self.stack, self.name, self.more = stack, name, more
        self.servers = []

    async def start(self, *known, **more):
        """One more broker, which knows these."""
        servers = [busway.cluster.members.servers_file.Listed(one.addresses[0], reconnect=FAST) for one in known]
        place = busway.Cluster(
            name=more.pop("cluster", self.name), servers=servers, **{**self.more, **more.pop("place", {})}
        )
        server = busway.serve("tcp://127.0.0.1:0", name=f"node-{len(self.servers)}", cluster=place, **more)
        await self.stack.enter_async_context(server)
        self.servers.append(server)
        return server

    async def several(self, count):
        for _number in range(count):
            await self.start(*self.servers[:1])
        await self.whole()
        return self.servers

    async def whole(self, *servers):
        """Each is linked to each."""
        servers = servers or self.servers

        async def linked():
            return all(links(one) == {other.guid for other in servers if other is not one} for one in servers)

        await eventually(linked)

    async def client(self, server, **more):
        return await self.stack.enter_async_context(busway.connect(server.addresses[0], **more))


def links(server):
    return set(server._hub.peers.members.members.linked)


@pytest.fixture
async def cluster():
    async with AsyncExitStack() as stack:
        yield Cluster(stack)


async def knows(publisher, topic, count):
    """So many connections get what this publisher sends to a topic."""

    async def reaches():
        return await publisher.publish(topic, b"?", confirm=True) == count

    await eventually(reaches)


async def until(subscription, last=b"end"):
    """What comes up to the last one, without that and the questions of `knows`."""
    got = []
    async with asyncio.timeout(60):
        while (message := await subscription.recv()).payload != last:
            if message.payload != b"?":
                got.append(message)
    return got


async def has(client, topic, *payloads):
    """What is kept on a topic, as this client's node sees it."""

    async def there():
        return sorted(message.payload for message in await client.kept(topic)) == sorted(payloads)

    await eventually(there)


def why(server, address):
    """What a node has to say of a server of its list: its state, and why."""
    found = (one for one in server._hub.peers.members.members.missing if one.addresses == (address,))
    return next((("refused" if one.refused else "unreached", one.why) for one in found), None)


async def served(server, topic, count):
    """A node knows of so many who share in a service: its own clients, and other nodes."""

    async def there():
        return len(server._hub.services.asking.providers.of(topic)) == count

    await eventually(there)


def says(text):
    async def answer(message):
        return text

    return answer
