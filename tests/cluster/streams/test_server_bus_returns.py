"""Phase 4 of the Server BUS document where it speaks of several brokers and of a mirror: each test quotes what it is about."""

import asyncio

import pytest

import busway
from tests.support.cluster import Cluster
from tests.support.cluster_streams import numbers, some, take
from tests.support.mirrored import Mirrored, copied, follows
from tests.support.net import eventually


@pytest.fixture
async def three(cluster: Cluster):
    servers = await cluster.several(3)
    return servers, [await cluster.client(server) for server in servers]


async def reaches(publisher, topic):
    async def known():
        return await publisher.publish(topic, b"", confirm=True)

    await eventually(known)


async def test_an_old_client_returns(cluster: Cluster, three):
    """O cliente envia ao broker a lista de topicos que quer escutar, juntamente com uma lista dos ultimos brokerId/topic/msgNo das mensagens persistentes que recebeu."""
    servers, clients = three
    for number, client in enumerate(clients):
        await some(client, f"log/{number}", 0, 10)
    async with clients[0].subscribe("log/**", since="all") as first:
        got = await take(first, 20)
        reached = first.position
    returned = await cluster.client(servers[1])
    async with returned.subscribe("log/**", since=reached) as second:
        got += await take(second, 10)
    for number in range(3):
        assert numbers(got, f"log/{number}") == list(range(10))


async def test_the_envelope_has_the_guid_and_the_number(three):
    """Esse número faz parte do envelope enviado ao consumidor, juntamente com o guid do broker original."""
    servers, clients = three
    await some(clients[0], "log/a", 0, 3)
    async with clients[2].subscribe("log/**", since="all") as history:
        got = await take(history, 3)
    assert [(message.broker, message.sequence) for message in got] == [(servers[0].guid, one) for one in (1, 2, 3)]


async def test_live_stored_messages_wait_for_the_pending_ones(three):
    """O broker deste cliente irá descartar eventos normais persistentes vindos de um broker e tópico sobre o qual está a decorrer um ciclo de consumo de pendentes. Estes eventos não são perdidos."""
    _, clients = three
    await some(clients[0], "log/a", 0, 500)
    async with clients[1].subscribe("log/**", since="all", limit=10) as history:
        publishing = asyncio.create_task(some(clients[0], "log/a", 500, 200))
        got = await take(history, 700)
        await publishing
    assert numbers(got) == list(range(700))


async def test_the_last_pending_one_is_marked(three):
    """O último evento da lista a ser enviado é indicado como o ultimo. A partir daqui os próximos eventos persistentes são tratados normalmente."""
    _, clients = three
    await some(clients[0], "log/a", 0, 10)
    async with clients[1].subscribe("log/**", since="all") as history:
        assert [message.last for message in await take(history, 10)] == [False] * 9 + [True]
        await some(clients[0], "log/a", 10, 5)
        assert numbers(await take(history, 5)) == list(range(10, 15))


async def test_only_who_asked_gets_them(three):
    """Só o cliente que pediu é que recebe as mensagens."""
    _, clients = three
    await some(clients[0], "log/a", 0, 10)
    async with clients[1].subscribe("log/**") as plain, clients[1].subscribe("log/**", since="all") as history:
        assert len(await take(history, 10)) == 10
        assert not plain.pending


async def test_what_is_not_stored_is_never_delayed(three):
    """Durante este ciclo de pendentes, os eventos não persistentes foram sempre consumidos normalmente."""
    _, clients = three
    await some(clients[0], "log/a", 0, 2000)
    async with clients[1].subscribe("now/**") as now:
        await reaches(clients[0], "now/x")
        async with clients[1].subscribe("log/**", since="all", limit=5):  # nobody takes any: the backlog stands still
            await clients[0].publish("now/x", b"at once")
            while (await now.recv(60)).payload != b"at once":
                pass


async def test_who_holds_the_messages_of_a_broker_that_is_offline_is_asked(nodes: Mirrored):
    """Se um broker não for encontrado (offline), todos os brokers são questionados para aquele brokerId."""
    a, b = await nodes.pair()
    c = await nodes.node("c", data=False)
    await nodes.whole(a, b, c)
    await some(await nodes.client(a), "log/a", 0, 10)
    await copied(a, b, 10)
    reader = await nodes.client(c)
    async with reader.subscribe("log/**", since="all") as first:
        await take(first, 4)
        reached = first.position
    await a.stop()
    async with reader.subscribe("log/**", since=reached) as second:
        assert numbers(await take(second, 6)) == list(range(4, 10))


async def test_the_acknowledgement_waits_for_the_mirror(nodes: Mirrored):
    """Quando uma mensagem é entregue com sucesso a um broker - ocorrendo replica do evento para o mirror - este envia um ACK ao cliente indicando que tudo correu bem."""
    a, b = await nodes.pair()
    client = await nodes.client(a)
    await client.create_stream("orders", topics=["orders/**"], safety="mirrored")

    async def mirrored():
        return (await (await client.stream("orders")).info()).mirrored

    await eventually(mirrored)
    for number in range(20):
        place = await client.publish("orders/1", str(number).encode(), durable=True)
        assert b._hub.peers.members.replication.copies[a.guid, "orders"].log.written > place.offset


async def test_a_mirror_that_comes_back_need_not_begin_anew(nodes: Mirrored):
    """Um broker mirror fica online: descarta log anterior de mensagens, gera novo guid, pede ao mirror o log do mirror. Here it keeps both and asks for what it lacks."""
    a, b = await nodes.pair()
    publisher = await nodes.client(a)
    await some(publisher, "log/a", 0, 10)
    await copied(a, b, 10)
    guid = b.guid
    await b.stop()
    await some(publisher, "log/a", 10, 10)
    again = await nodes.node("b", mirror_of="a")
    await follows(a, again)
    await copied(a, again, 20)
    assert again.guid == guid


async def test_a_request_is_never_stored(three):
    """PARA REQUEST/REPLY, NÃO HÁ PERSISTENCIA DAS MENSAGENS. SE UM NÓ DO CAMINHO FALHA, TODO O PROCESSO FALHA."""
    servers, clients = three
    called = asyncio.Event()

    async def never(_message):
        called.set()
        await asyncio.Event().wait()

    service = await clients[1].serve("sum", never, wait="cluster")
    asking = asyncio.create_task(clients[0].request("sum", b"", timeout=60))
    await called.wait()
    await servers[1].stop(0)
    with pytest.raises(busway.BusError):
        await asking
    del service
