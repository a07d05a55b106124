"""TLS: which peers are accepted, and the peer's name at the broker."""

import asyncio
import ssl
from pathlib import Path

import pytest

import busway
from tests.support import wire
from tests.support.net import Certificates, payloads, within

pytestmark = pytest.mark.both_loops  # each has its own way of TLS


def server_tls(certificates: Certificates, *, mutual: bool = False) -> busway.TLS:
    return busway.TLS(cert=certificates.server, key=certificates.server_key, ca=certificates.ca if mutual else None)


async def test_a_client_without_a_certificate_is_refused_by_a_mutual_server(certificates: Certificates) -> None:
    async with busway.serve("tls://127.0.0.1:0", tls=server_tls(certificates, mutual=True)) as server:
        url = server.addresses[0]
        with pytest.raises(busway.ConnectFailed):
            await within(
                busway.connect(url, tls=busway.TLS(ca=certificates.ca), timeout=5, reconnect=None).__aenter__()
            )
        good = busway.TLS(ca=certificates.ca, cert=certificates.client, key=certificates.client_key)
        async with busway.connect(url, tls=good) as bus, bus.subscribe("t") as subscription:
            await bus.publish("t", b"secret")
            assert await payloads(subscription, 1) == [b"secret"]


async def test_the_name_of_the_peer_is_in_info(certificates: Certificates) -> None:
    async with busway.serve("tls://127.0.0.1:0", tls=server_tls(certificates, mutual=True)) as server:
        tls = busway.TLS(ca=certificates.ca, cert=certificates.client, key=certificates.client_key)
        async with (
            busway.connect(server.addresses[0], tls=tls, name="says anything") as bus,
            server.connect() as inside,
        ):
            for asker in (bus, inside):
                connections = (await asker.info())["connections"]
                names = {each["name"]: each["peer_name"] for each in connections}
                assert names == {"says anything": "sensor-7.example", "": ""}


async def test_a_server_of_an_unknown_authority_is_not_trusted(certificates: Certificates) -> None:
    async with busway.serve("tls://127.0.0.1:0", tls=server_tls(certificates)) as server:
        for tls in (busway.TLS(ca=certificates.stranger_ca), busway.TLS(), None):
            with pytest.raises(busway.ConnectFailed, match=r"(?i)certificate"):
                await within(busway.connect(server.addresses[0], tls=tls, timeout=5, reconnect=None).__aenter__())
        async with busway.connect(server.addresses[0], tls=busway.TLS(verify=False)) as bus:
            assert await bus.publish("t", b"", confirm=True) == 0


async def test_the_name_of_the_server_is_checked(certificates: Certificates) -> None:
    async with busway.serve("tls://127.0.0.1:0", tls=server_tls(certificates)) as server:
        wrong = busway.TLS(ca=certificates.ca, server_name="elsewhere.example")
        with pytest.raises(busway.ConnectFailed):
            await within(busway.connect(server.addresses[0], tls=wrong, timeout=5, reconnect=None).__aenter__())
        right = busway.TLS(ca=certificates.ca, server_name="localhost")
        async with busway.connect(server.addresses[0], tls=right) as bus:
            assert bus.state == "connected"


async def test_plain_bytes_at_a_tls_port_harm_nobody(certificates: Certificates) -> None:
    async with busway.serve("tls://127.0.0.1:0", tls=server_tls(certificates)) as server:
        plain = server.addresses[0].replace("tls:", "tcp:")
        async with await wire.RawClient.open(plain) as raw:
            await raw.send(wire.greeting(7, "plain"))
            assert wire.split(await raw.rest())[0] == []
        with pytest.raises(busway.ConnectFailed, match="if the server needs TLS, write tls:// instead of tcp://"):
            await within(busway.connect(plain, timeout=5, reconnect=None).__aenter__())
        async with busway.connect(server.addresses[0], tls=busway.TLS(ca=certificates.ca)) as bus:
            assert await bus.publish("t", b"", confirm=True) == 0


async def test_a_tls_client_at_a_plain_port_fails_clearly(certificates: Certificates) -> None:
    async with busway.serve("tcp://127.0.0.1:0") as server:
        url = server.addresses[0].replace("tcp:", "tls:")
        with pytest.raises(busway.ConnectFailed):
            await within(
                busway.connect(url, tls=busway.TLS(ca=certificates.ca), timeout=5, reconnect=None).__aenter__()
            )


async def test_tls_needs_a_certificate() -> None:
    for tls in (None, busway.TLS()):
        with pytest.raises((ValueError, busway.BusError)):
            async with busway.serve("tls://127.0.0.1:0", tls=tls):
                pass


async def test_a_missing_certificate_file_is_a_clear_error(certificates: Certificates) -> None:
    for tls in (
        busway.TLS(cert="/nowhere.pem", key=certificates.server_key),
        busway.TLS(cert=certificates.server, key=certificates.client_key),
    ):
        with pytest.raises((busway.BusError, OSError, ssl.SSLError)):
            async with busway.serve("tls://127.0.0.1:0", tls=tls):
                pass


async def test_a_peer_that_connects_and_never_begins_tls(certificates: Certificates) -> None:
    settings = busway.Settings(handshake=0.1)
    async with busway.serve("tls://127.0.0.1:0", tls=server_tls(certificates), settings=settings) as server:
        async with await wire.RawClient.open(server.addresses[0].replace("tls:", "tcp:")) as raw:
            await raw.rest()  # ends by itself
        async with busway.connect(server.addresses[0], tls=busway.TLS(ca=certificates.ca)) as bus:
            assert bus.state == "connected"


async def test_all_transports_of_one_server_meet(certificates: Certificates, tmp_path: Path) -> None:
    addresses = (f"unix:{tmp_path / 'bus'}", "tcp://127.0.0.1:0", "tls://127.0.0.1:0", "tcp://localhost:0")
    async with busway.serve(*addresses, tls=server_tls(certificates)) as server:
        assert len(server.addresses) == 4
        tls = busway.TLS(ca=certificates.ca)
        clients = [busway.connect(url, tls=tls if url.startswith("tls") else None) for url in server.addresses]
        clients.append(server.connect())
        async with asyncio.TaskGroup() as tasks:
            joining = [tasks.create_task(client.__aenter__()) for client in clients]
        buses = [task.result() for task in joining]
        subscriptions = [await bus.subscribe("t") for bus in buses]
        for number, bus in enumerate(buses):
            assert await bus.publish("t", str(number), confirm=True) == 5
        for subscription in subscriptions:
            assert await payloads(subscription, 5) == [b"%d" % number for number in range(5)]
        transports = sorted(each["transport"] for each in (await buses[0].info())["connections"])
        assert transports == ["memory", "tcp", "tcp", "tls", "unix"]
        for bus in buses:
            await bus.close()
