"""The third phase of the Server BUS document, "Cluster", sentence by sentence (its words in quotation marks)."""

import asyncio
from contextlib import AsyncExitStack
from itertools import cycle

import pytest

import busway
from tests.support.cluster import FAST, Cluster, knows, links, until as taken
from tests.support.net import eventually, until, within

QUICK = {"reconnect": (0, 0.02, 0.05), "timeout": 10}


@pytest.fixture
async def nodes():
    async with AsyncExitStack() as stack:
        yield Cluster(stack)


class Balancer:
    """A plain TCP balancer: hands each connection to the next server that answers, and carries bytes."""

    def __init__(self, servers):
        self._turns = cycle(range(len(servers)))
        self._ports = [int(one.addresses[0].rpartition(":")[2]) for one in servers]
        self._tasks = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        for _ in self._ports:
            try:
                far, out = await asyncio.open_connection("127.0.0.1", self._ports[next(self._turns)])
            except OSError:
                continue
            await asyncio.gather(self._carry(reader, out), self._carry(far, writer))
            return
        writer.close()

    async def _carry(self, reader, writer):
        try:
            while chunk := await reader.read(65536):
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


async def test_several_brokers_behind_a_balancer(nodes):
    """ "Um cluster é constituido por vários brokers (nós), tendo à frente um balanceador de carga (NLB), ou um HA Proxy"."""
    hidden = {"advertise": ["tcp://127.0.0.1:1"]}
    for _ in range(3):
        await nodes.start(*nodes.servers, place=hidden)
    await nodes.whole()
    servers = nodes.servers
    async with Balancer(servers) as balancer, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(busway.connect(balancer.address, **QUICK)) for _ in range(6)]
        homes = {one.guid: [bus for bus in clients if bus.server["guid"] == one.guid] for one in servers}
        assert [len(buses) for buses in homes.values()] == [2, 2, 2]
        inboxes = [await stack.enter_async_context(bus.subscribe("t")) for bus in clients]
        await knows(clients[0], "t", 4)
        await clients[0].publish("t", b"end")
        for inbox in inboxes:
            await taken(inbox)
        moved = homes[servers[1].guid]
        await servers[1].stop()
        left = {servers[0].guid, servers[2].guid}
        await until(lambda: all(bus.state == "connected" and bus.server["guid"] in left for bus in clients))
        assert {bus.url for bus in moved} == {balancer.address}

        async def reached():
            near = sum(bus.server["guid"] == clients[0].server["guid"] for bus in clients)
            return await clients[0].publish("t", b"?", confirm=True) == near + 1

        await eventually(reached)
        await clients[0].publish("t", b"end")
        for inbox in inboxes:
            await taken(inbox)


async def test_the_new_connection_comes_from_a_directory(nodes):
    """ "a nova ligação deve ser obtida através de um "directorio". (NLB)" (of the first phase): each broker is one."""
    a, b = await nodes.several(2)
    bus = await nodes.client(a, **QUICK)
    assert [(one.name, one.addresses) for one in bus.servers] == [(a.name, a.addresses), (b.name, b.addresses)]
    await a.stop()
    await until(lambda: bus.state == "connected" and bus.url == b.addresses[0])


async def test_one_name_that_all_nodes_know_and_several_clusters_on_one_network(nodes):
    """ "Um cluster tem um identificador unico conhecido por todos os nós. Permite a convivencia de cluster distintos na
    mesma rede". Here the nodes of both are in each other's lists."""
    one = [await nodes.start(cluster="north") for _ in range(1)]
    two = [await nodes.start(*one, cluster="south")]
    one.append(await nodes.start(*one, *two, cluster="north"))
    two.append(await nodes.start(*one, *two, cluster="south"))
    for cluster in (one, two):
        await nodes.whole(*cluster)
    north, south = [(await nodes.client(a), await nodes.client(b)) for a, b in (one, two)]
    async with north[1].subscribe("t") as wanted, south[1].subscribe("t") as other:
        await knows(north[0], "t", 1)
        await north[0].publish("t", b"end")
        await taken(wanted)
        await knows(south[0], "t", 1)
        await south[0].publish("t", b"end")
        assert {message.payload for message in await taken(other)} <= {b"?"}
    for bus, name in ((north[0], "north"), (south[0], "south")):
        found = (await bus.request("$bus/cluster")).json()
        assert (found["cluster"], len(found["nodes"])) == (name, 2)
    assert all(server.stats()["links"] == 1 for server in (*one, *two))


async def test_all_nodes_are_equal(nodes):
    """ "Todos os nós do cluster são iguais". Whichever is stopped, the others are the bus, and it comes back as any other."""
    servers = list(await nodes.several(3))
    for number in range(3):
        address = servers[number].addresses[0]
        await servers[number].stop()
        rest = [one for one in servers if one is not servers[number]]
        await until(lambda rest=rest: all(len(links(one)) == 1 for one in rest))
        writer, reader = await nodes.client(rest[0]), await nodes.client(rest[1])
        async with reader.subscribe("t") as inbox:
            await knows(writer, "t", 1)
            await writer.publish("t", b"end")
            await taken(inbox)
        place = busway.Cluster(
            name="test", servers=[busway.cluster.members.servers_file.Listed(rest[0].addresses[0], reconnect=FAST)]
        )
        servers[number] = await nodes.stack.enter_async_context(busway.serve(address, cluster=place))
        await nodes.whole(*servers)


async def test_a_node_that_comes_online_announces_itself(nodes):
    """ "Sempre que um nó fica online, anuncia-se. O outros nós reagem estabelecendo ligações ao novo nó, que por sua vez
    estabelece uma ligação inversa". One link carries both directions, so there is no second, inverse one: half the connections, and two nodes
    can't be linked one way only."""
    servers = await nodes.several(3)
    bus = await nodes.client(servers[1])
    async with bus.subscribe("$bus/cluster/up") as events:
        new = await nodes.start(servers[0])  # it knows one of them
        await nodes.whole()
        assert (await events.recv(timeout=60)).fields["guid"] == new.guid
    for server in servers:
        assert sum(session.node for session in server._hub.everyone) == 3
    there, here = await nodes.client(new), await nodes.client(servers[2])
    async with here.subscribe("t") as inward, there.subscribe("u") as outward:
        await knows(there, "t", 1)
        await there.publish("t", b"end")
        await taken(inward)
        await knows(here, "u", 1)
        await here.publish("u", b"end")
        await taken(outward)


async def test_a_broker_announces_itself_as_a_subscriber(nodes):
    """ "Quando um cliente ligado a um broker subescreve um tópico, esse broker anuncia-se aos outros brokers como subscriber
    desse tópico". Once, however many of its clients do."""
    a, b = await nodes.several(2)
    here, one, two = await nodes.client(a), await nodes.client(b), await nodes.client(b)

    async def told(count):
        async def is_told():
            found = (await here.request("$bus/cluster")).json()
            return found["nodes"][1]["link"]["subscriptions"] == count

        await eventually(is_told)

    await told(0)
    async with one.subscribe("alarm"):
        await told(1)
        async with two.subscribe("alarm"), two.subscribe("state/*"):
            await told(2)
        await told(1)
    await told(0)


async def test_nodes_are_each_others_clients(nodes):
    """ "No que respeita à troca de eventos, os nós são vistos como clientes uns dos outros"."""
    a, b = await nodes.several(2)
    here, there = await nodes.client(a), await nodes.client(b)
    async with there.subscribe("t") as inbox:
        await knows(here, "t", 1)
        await here.publish("t", b"end")
        await taken(inbox)
        for asked, other in ((here, b), (there, a)):
            listed = {one["name"]: one for one in (await asked.info())["connections"]}
            assert listed[other.name]["state"] == "open"
        assert {one["name"]: one for one in (await here.info())["connections"]}[b.name]["subscriptions"] == 1


async def test_a_message_is_passed_on_once_and_from_there_to_clients_only(nodes):
    """ "As mensagens reenviadas aos brokers têm que levar a indicação que dali, só podem seguir para clientes. Ou seja, entre
    brokers, só pode haver UM reencaminhamento, eliminando o risco de as mensagens circularem em loop inifinito entre os clusters". The indication is
    the link it comes over: nothing of that ever goes to a link, whatever a message says of itself."""
    servers = await nodes.several(4)
    clients = [await nodes.client(one) for one in servers]
    inboxes = [await nodes.stack.enter_async_context(bus.subscribe("t")) for bus in clients]
    for bus in clients:
        await knows(bus, "t", 4)
    before = [one.stats()["linked_delivered"] for one in servers]
    for number in range(100):
        await clients[0].publish("t", str(number).encode())
    await clients[0].publish("t", b"end")
    for inbox in inboxes:
        assert [int(message.payload) for message in await taken(inbox)] == list(range(100))
    for bus in clients:
        await within(bus.flush())
    crossed = [one.stats()["linked_delivered"] - was for one, was in zip(servers, before, strict=True)]
    assert crossed == [3 * 101, 0, 0, 0]
    assert all(inbox.pending == 0 for inbox in inboxes)
