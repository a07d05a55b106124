"""Stored messages as the document of the Server BUS has them, phase 4: each test quotes the line or the case that it keeps.

Mirrors, and brokers that ask each other for what they have stored, are in tests/cluster/failover/test_server_bus_returns.py.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import busway
from busway.positions import Position, Positions
from busway.testing import FaultProxy
from tests.support.net import PATIENCE, Net, gather, payloads, settle, within

pytestmark = pytest.mark.both_loops


async def backlog(subscription: busway.Subscription) -> list[busway.Message]:
    """Up to the one that is marked as the last."""
    got = [await subscription.recv(timeout=PATIENCE)]
    while not got[-1].last:
        got.append(await subscription.recv(timeout=PATIENCE))
    return got


# What a broker keeps.


async def test_only_what_is_marked_is_kept(net: Net) -> None:
    """ "Um broker guarda numa lista os eventos entregues (só os marcados para serem persistidos)"."""
    producer, late = await net.connect(), await net.connect()
    async with late.subscribe("alarm") as delivered:
        await producer.publish("alarm", b"passing")
        await producer.publish("alarm", b"kept", durable=True)
        assert await payloads(delivered, 2) == [b"passing", b"kept"]
    async with late.subscribe("alarm", since="all") as again:
        assert [message.payload for message in await backlog(again)] == [b"kept"]


async def test_for_a_time_at_most(net: Net, tmp_path: Path) -> None:
    """ "por um periodo de tempo máximo (ex: 1 dia)". Without a limit a stream keeps everything."""
    server = await net.serve(data=tmp_path / "data")
    bus = await net.connect()
    assert server._hub is not None
    streaming = server._hub.streams
    assert streaming.get("default").config.max_age == 7 * 86400
    await bus.create_stream("short", topics=["short"], store="memory", max_age=0.05)
    await bus.publish("short", b"old", durable=True)
    async with asyncio.timeout(PATIENCE):
        while streaming.get("short").first == 0:
            streaming.get("short").log.trim(time.time_ns())
            await settle(bus)
    await bus.publish("short", b"new", durable=True)
    async with bus.subscribe("short", since="all") as reader:
        got = await backlog(reader)
    assert [(message.payload, message.sequence) for message in got] == [(b"new", 2)]


async def test_a_list_for_each_topic_with_numbers_of_its_own(net: Net) -> None:
    """ "Uma lista por cada tópico. Cada evento é registado com um número sequencial unico dentro do tópico. Esse número faz
    parte do envelope enviado ao consumidor, juntamente com o guid do broker original"."""
    producer, consumer = await net.connect(), await net.connect()
    async with consumer.subscribe("scada/*") as live:
        for number in range(9):
            await producer.publish(f"scada/{number % 3}", str(number), durable=True)
        envelopes = await gather(live, 9)
    for topic in range(3):
        own = [message for message in envelopes if message.topic == f"scada/{topic}"]
        assert [message.sequence for message in own] == [1, 2, 3]
        assert {message.broker for message in own} == {producer.server["guid"]}


async def test_the_consumer_knows_the_broker_and_the_number_of_the_last_message(net: Net) -> None:
    """ "O consumidor mantem o registo do guid do brokers e do número sequencial da última mensagem recebida". Ours keeps the
    offset in the stream, which stands for the numbers of all its topics."""
    bus = await net.connect()
    async with bus.subscribe("t", since="all") as consumer:
        places = await bus.publish_many("t", [b"1", b"2", b"3"], durable=True)
        await gather(consumer, 2)
        assert consumer.position == Positions([places[1]])
        assert str(consumer.position).startswith(bus.server["guid"])


async def test_in_buckets_of_files(net: Net, tmp_path: Path) -> None:
    """ "para registar as mensagens usar buckets de ficheiros em vez de BD, ja que a persistencia é linear"."""
    await net.serve(data=tmp_path / "data")
    bus = await net.connect()
    await bus.publish_many("t", [b"x" * 1000] * 100, durable=True)
    buckets = list((tmp_path / "data" / "streams" / "default" / "log").glob("*.log"))
    assert len(buckets) == 1
    assert buckets[0].stat().st_size > 100_000


async def test_requests_are_never_stored(net: Net) -> None:
    """ "PARA REQUEST/REPLY, NÃO HÁ PERSISTENCIA DAS MENSAGENS. SE UM NÓ DO CAMINHO FALHA, TODO O PROCESSO FALHA"."""
    provider, client = await net.connect(), await net.connect()
    async with provider.serve("sum", lambda message: b"3"):
        assert (await client.request("sum", b"[1,2]")).payload == b"3"
    with pytest.raises(busway.NoResponders):
        await client.request("sum", b"[1,2]")
    with pytest.raises(TypeError):
        client.request("sum", b"", durable=True)  # type: ignore[call-arg]
    place = await client.publish("sum", b"stored", durable=True)
    assert (place.offset, place.sequence) == (0, 1)


# » "Um cliente envia mensagem não persistente"


async def test_a_client_sends_a_message_that_is_not_persistent(net: Net) -> None:
    """ "Um cliente envia mensagem não persistente": it is handed to who is there, and that is all."""
    producer, consumer = await net.connect(), await net.connect()
    assert await producer.publish("t", b"early", confirm=True) == 0
    async with consumer.subscribe("t") as live:
        assert await producer.publish("t", b"now", confirm=True) == 1
        (message,) = await gather(live, 1)
    assert (message.payload, message.position, message.sequence) == (b"now", None, None)


# » "Um cliente envia mensagem persistente"


async def test_it_is_persisted_delivered_and_acknowledged(net: Net, tmp_path: Path) -> None:
    """ "O broker recebe mensagem; persiste mensagem (grava em disco …); o broker entrega a mensagens aos consumidores
    interessados; Devolve ACK ao produtor da mensagem"."""
    await net.serve(data=tmp_path / "data")
    producer, consumer, stranger = await net.connect(), await net.connect(), await net.connect()
    async with consumer.subscribe("alarm/*") as interested, stranger.subscribe("other") as other:
        place = await producer.publish("alarm/fire", b"pole 7", durable=True)
        (message,) = await gather(interested, 1)
        await settle(stranger)
        assert other.pending == 0
    assert message.position == place
    (bucket,) = (tmp_path / "data" / "streams" / "default" / "log").glob("*.log")
    assert b"pole 7" in bucket.read_bytes()  # behind the acknowledgement it is there


@pytest.mark.parametrize("net", ["unix", "tcp"], indirect=True)  # the link that fails is a proxy for these
async def test_after_an_error_the_client_sends_it_again_and_it_is_stored_once(net: Net) -> None:
    """ "Se houver algum erro o cliente volta a enviar a mensagem; mensagens duplicadas são descartadas pelos clientes
    consumidores?????" No consumer has to: the broker knows what it has stored."""
    server, witness = await net.serve(), await net.connect()
    listen = f"unix:{net.folder / 'proxy'}" if net.kind == "unix" else None
    async with FaultProxy(server.addresses[0], listen=listen) as proxy, witness.subscribe("t") as live:
        async with busway.connect(proxy.address, reconnect=(0, 0, 0.001), timeout=PATIENCE) as producer:
            (await proxy.link()).stall("down")
            sending = asyncio.ensure_future(producer.publish("t", b"once", durable=True))
            (message,) = await gather(live, 1)  # stored and delivered, but the ACK is under way
            proxy.cut()
            assert await within(sending) == message.position
            assert (await producer.publish("t", b"next", durable=True)).sequence == 2
        assert await payloads(live, 1) == [b"next"]


# » "Cliente novo liga-se a um broker"


async def test_a_new_client_gets_a_number_and_hears_what_comes(net: Net) -> None:
    """ "Um cliente liga-se a um broker. O broker atribui um numero sequencial ao cliente (clientNo). O cliente diz quais os
    tópicos que pretende receber e fica à escuta"."""
    first, second = await net.connect(), await net.connect()
    assert second.server["client"] == first.server["client"] + 1
    await first.publish("t", b"before", durable=True)
    async with second.subscribe("t") as live:
        await first.publish("t", b"after", durable=True)
        assert await payloads(live, 1) == [b"after"]


# » "Um cliente antigo retorna"


async def test_an_old_client_comes_back_and_gets_what_it_missed(net: Net, tmp_path: Path) -> None:
    """ "O cliente envia ao broker a lista de topicos que quer escutar, juntamente com uma lista dos ultimos
    brokerId/topic/msgNo das mensagens persistentes que recebeu". Also when the broker was restarted meanwhile."""
    server = await net.serve(data=tmp_path / "data")
    async with net.client() as producer:
        async with net.client(name="old") as old, old.subscribe("alarm/*", since="new") as alarms:
            await producer.publish_many("alarm/a", [b"0", b"1", b"2"], durable=True)
            await gather(alarms, 2)
            kept = str(alarms.position)  # in a file, say
        await producer.publish_many("alarm/b", [b"3", b"4"], durable=True)
    await server.stop()
    await net.serve(data=tmp_path / "data")
    old, producer = await net.connect("old"), await net.connect()
    async with old.subscribe("alarm/*", since=kept) as alarms:
        missed = await backlog(alarms)
        assert [message.payload for message in missed] == [b"2", b"3", b"4"]
        await producer.publish("alarm/a", b"5", durable=True)
        (live,) = await gather(alarms, 1)
        assert (live.payload, live.replayed, live.sequence) == (b"5", False, 4)


async def test_live_ones_wait_while_those_missed_are_handed_over(net: Net) -> None:
    """ "O broker … irá descartar eventos normais persistentes vindos de um broker e tópico sobre o qual está a decorrer um
    ciclo de consumo de pendentes. Estes eventos não são perdidos pois como estão a ser persistidos, eventualmente serão
    entregues. Assim que a ultima mensagem pendente é recebida … o broker deixa de descartar mensagens"."""
    await net.serve(outbox=1 << 20)
    producer, old = await net.connect(), await net.connect()
    await producer.publish_many("t", [b"%d" % number + b"." * 4000 for number in range(2000)], durable=True)
    async with old.subscribe("t", since="all", limit=50) as pending:
        (first,) = await gather(pending, 1)
        assert first.replayed
        await producer.publish_many("t", [b"%d" % number for number in range(2000, 2100)], durable=True)
        got = [first, *await gather(pending, 2099)]
        assert [int(message.payload.rstrip(b".")) for message in got] == list(range(2100))
        await settle(old)  # the broker knows that there is room again
        await producer.publish("t", b"2100", durable=True)
        (live,) = await gather(pending, 1)
        assert not live.replayed


async def test_only_who_asked_gets_them(net: Net) -> None:
    """ "Só o cliente que pediu é que recebe as mensagens"."""
    producer, old, other = await net.connect(), await net.connect(), await net.connect()
    await producer.publish_many("t", [b"1", b"2"], durable=True)
    async with (
        other.subscribe("t") as listening,
        old.subscribe("t") as beside,
        old.subscribe("t", since="all") as asked,
    ):
        assert len(await backlog(asked)) == 2
        await settle(old, other)
        assert (listening.pending, beside.pending) == (0, 0)


async def test_a_few_at_a_time_from_the_number_that_was_given(net: Net) -> None:
    """ "O broker que recebe o pedido de mensagens persistidas, lança uma goroutine para processar, um/cem a um/cem, os eventos
    em log a partir do msgNo fornecido": never more at once than there is room for."""
    server = await net.serve(outbox=1 << 20)
    producer, old = await net.connect(), await net.connect()
    places = await producer.publish_many("t", [b"." * 10_000] * 1000, durable=True)
    async with old.subscribe("t", since=places[99], limit=10) as pending:
        got = []
        while len(got) < 900:
            got += await pending.take(10, timeout=PATIENCE)
            assert server.stats()["outbox_bytes"] < 2 << 20
    assert [message.offset for message in got] == list(range(100, 1000))


async def test_the_last_one_is_marked_and_then_all_is_as_usual(net: Net) -> None:
    """ "O último evento da lista a ser enviado é indicado como o ultimo. A partir daqui os próximos eventos persistentes são
    tratados normalmente"."""
    producer, old = await net.connect(), await net.connect()
    await producer.publish_many("t", [b"1", b"2", b"3"], durable=True)
    async with old.subscribe("t", since="all") as pending:
        assert [(one.replayed, one.last) for one in await gather(pending, 3)] == [
            (True, False),
            (True, False),
            (True, True),
        ]
        await producer.publish("t", b"4", durable=True)
        assert [message.replayed for message in await gather(pending, 1)] == [False]


async def test_what_is_not_persistent_goes_on_meanwhile(net: Net) -> None:
    """ "Durante este ciclo de pendentes, os eventos não persistentes foram sempre consumidos normalmente"."""
    await net.serve(outbox=1 << 20)
    producer, old = await net.connect(), await net.connect()
    await producer.publish_many("t", [b"." * 8000] * 3000, durable=True)
    async with old.subscribe("t", since="all", limit=100) as pending, old.subscribe("now") as now:
        await producer.publish("now", b"passing")
        assert await payloads(now, 1) == [b"passing"]
        assert pending.received < 3000
        assert [message.offset for message in await gather(pending, 3000)] == list(range(3000))


async def test_a_broker_that_is_not_known_here(net: Net) -> None:
    """ "Se um broker não for encontrado (offline) …": its numbers say nothing about ours, so all of ours is handed over."""
    bus = await net.connect()
    await bus.publish_many("t", [b"1", b"2"], durable=True)
    async with bus.subscribe("t", since=Position("f" * 32, "default", 7)) as reader:
        assert len(await backlog(reader)) == 2


# "Um broker fica offline imediatamente a seguir a receber uma mensagem e enviar o ACK ao cliente"


async def test_a_broker_goes_offline_right_after_its_ack(net: Net, tmp_path: Path) -> None:
    """Without a mirror nobody answers meanwhile; when it is back, what it acknowledged is there. (tests/crash kills it.)"""
    server = await net.serve(data=tmp_path / "data")
    async with net.client() as producer:
        place = await producer.publish("t", b"acknowledged", durable=True)
        await server.stop(drain=0)
    await net.serve(data=tmp_path / "data")
    bus = await net.connect()
    async with bus.subscribe("t", since=datetime.now(UTC) - timedelta(hours=1)) as reader:
        assert [message.position for message in await backlog(reader)] == [place]
