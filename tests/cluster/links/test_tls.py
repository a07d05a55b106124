"""Links over TLS: which certificates are sent and trusted, and the reasons of refused links."""

from contextlib import AsyncExitStack

import pytest

import busway
from tests.support.cluster import Cluster, why
from tests.support.net import until


@pytest.fixture
async def cluster():
    async with AsyncExitStack() as stack:
        yield Cluster(stack)


@pytest.fixture
def start(cluster):
    async def start(*known, tls, links=None):
        """A node at a tls:// address, which knows these, and shows and asks for these certificates at its own address and at links."""
        servers = [busway.cluster.members.servers_file.Listed(one.addresses[0], reconnect=(0.05,)) for one in known]
        place = busway.Cluster(name="test", servers=servers, tls=links)
        server = busway.serve("tls://127.0.0.1:0", cluster=place, tls=tls)
        return await cluster.stack.enter_async_context(server)

    return start


async def test_links_show_and_ask_for_the_certificates_of_the_server(cluster, certificates, start):
    tls = busway.TLS(cert=certificates.server, key=certificates.server_key, ca=certificates.ca)
    first = await start(tls=tls)
    second, third = await start(first, tls=tls), await start(first, tls=tls)
    await cluster.whole(first, second, third)  # also the two that were told of each other
    assert all(one.stats()["links"] == 2 for one in (first, second, third))


async def test_an_authority_for_links_alone(cluster, certificates, start):
    """The servers ask their clients for no certificate."""
    tls = busway.TLS(cert=certificates.server, key=certificates.server_key)
    trusting = busway.TLS(ca=certificates.ca)
    first = await start(tls=tls, links=trusting)
    second = await start(first, tls=tls, links=trusting)
    await cluster.whole(first, second)


@pytest.mark.parametrize(
    ("links", "reason"),
    [
        (lambda _: None, "the server's certificate was not accepted: "),
        (lambda files: busway.TLS(ca=files.stranger_ca), "the server's certificate was not accepted: "),
        (lambda files: busway.TLS(ca=files.ca, server_name="elsewhere"), "Hostname mismatch"),
    ],
)
async def test_a_server_that_is_not_trusted(certificates, start, links, reason):
    tls = busway.TLS(cert=certificates.server, key=certificates.server_key)
    first = await start(tls=tls)
    second = await start(first, tls=tls, links=links(certificates))
    await until(lambda: reason in why(second, first.addresses[0])[1])
    assert why(second, first.addresses[0])[0] == "unreached"
    assert first.addresses[0] in why(second, first.addresses[0])[1]


async def test_a_server_that_wants_a_certificate(certificates, start):
    shows = busway.TLS(cert=certificates.server, key=certificates.server_key)
    asks = busway.TLS(cert=certificates.server, key=certificates.server_key, ca=certificates.ca)
    first = await start(tls=asks)
    second = await start(first, tls=shows, links=busway.TLS(ca=certificates.ca))
    reason = "the other side closed the connection at once: it is no broker, or it requires a certificate that this node does not send"
    await until(lambda: why(second, first.addresses[0]) == ("unreached", reason))
    plain = busway.Cluster(name="test", servers=[first.addresses[0].replace("tls:", "tcp:")])
    third = busway.serve("tcp://127.0.0.1:0", cluster=plain)
    async with third:
        await until(lambda: "or it requires TLS" in why(third, plain.servers[0])[1])


async def test_the_name_in_a_certificate_is_that_of_the_address(cluster, certificates, start):
    """Of the list, and of what a node advertises."""
    tls = busway.TLS(cert=certificates.server, key=certificates.server_key, ca=certificates.ca)
    first = await start(tls=tls)
    port = first.addresses[0].rpartition(":")[2]
    place = busway.Cluster(name="test", servers=[f"tls://localhost:{port}"])
    second = await cluster.stack.enter_async_context(busway.serve("tls://127.0.0.1:0", cluster=place, tls=tls))
    await cluster.whole(first, second)
