"""Clients of other protocols at a wrong port get an answer that names the port's protocol."""

import asyncio
import ssl

import aiohttp
import pytest

import busway
from tests.support.net import Certificates, within


@pytest.fixture
async def server(certificates: Certificates):
    tls = busway.TLS(cert=certificates.server, key=certificates.server_key)
    async with busway.serve("tcp://127.0.0.1:0", "tls://127.0.0.1:0", http="127.0.0.1:0", tls=tls) as server:
        yield server


async def refusal(url: str, **more: object) -> str:
    """Why a native client can't connect; it hears so long before its timeout."""
    with pytest.raises(busway.BusError) as told:
        await within(busway.connect(url, timeout=3600, **more).open())
    return str(told.value)


async def test_a_native_client_at_the_http_port(server) -> None:
    text = await refusal(server.http.replace("http", "tcp"))
    assert "answered with HTTP" in text
    assert "7420" in text
    with pytest.raises(ValueError, match=r"for HTTP and WebSocket clients .*tcp://HOST:PORT"):
        busway.connect(server.http)


async def test_tls_and_plain(server, certificates: Certificates) -> None:
    plain, secure = server.addresses
    tls = busway.TLS(ca=certificates.ca)
    for url in (plain, server.http.replace("http", "tcp")):
        assert "does not speak TLS" in await refusal(url.replace("tcp", "tls"), tls=tls)
    assert "closed" in await refusal(secure.replace("tls", "tcp"))


async def test_an_http_client_at_a_native_port(server, certificates: Certificates) -> None:
    plain, secure = server.addresses
    trusted = ssl.create_default_context(cafile=certificates.ca)
    async with aiohttp.ClientSession() as session:
        for url, context in ((plain.replace("tcp", "http"), True), (secure.replace("tls", "https"), trusted)):
            for method in ("GET", "POST"):
                async with session.request(method, url + "/x", data=b"x" * 100_000, ssl=context) as response:
                    assert response.status == 400
                    text = await response.text()
                    assert f"HTTP clients use {server.http}/" in text
    assert server.stats()["connections"] >= 0
    async with busway.connect(plain) as bus:
        assert await bus.publish("a", b"", confirm=True) == 0, "others are served"


async def test_a_broker_without_an_http_port_says_so() -> None:
    async with busway.serve("tcp://127.0.0.1:0") as server, aiohttp.ClientSession() as session:
        async with session.get(server.addresses[0].replace("tcp", "http")) as response:
            assert (response.status, "busway serve --http" in await response.text()) == (400, True)


async def test_only_the_beginning_of_a_connection_is_looked_at() -> None:
    """A request of HTTP in pieces, or behind a HELLO, is a broken frame as any other."""
    async with busway.serve("tcp://127.0.0.1:0") as server:
        host, _, port = server.addresses[0].removeprefix("tcp://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x01\x00\x00\x00\x01GET / HTTP/1.1\r\n\r\n")
        assert not (await within(reader.read())).startswith(b"HTTP/")
        writer.close()


async def test_the_address_in_a_browser(server) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get(server.http + "/") as response:
            text = await response.text()
            assert (response.status, response.content_type) == (200, "text/plain")
            assert f"{server.http}/?cmd=ping" in text
            assert server.addresses[0] in text
        async with session.post(server.http + "/", data=b"{}") as response:
            assert response.status == 400, "as zbus clients know it"
        async with session.get(server.http + "/?mq=x") as response:
            assert (response.status, (await response.json())["body"]) == (400, "cmd key required")
