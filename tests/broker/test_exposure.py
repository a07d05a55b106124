"""Addresses that other hosts can reach: refused without authentication, unless the server is insecure."""

from typing import Any

import pytest

import busway
import busway.sync
from busway.broker.exposure import Exposure
from busway.transport import parse
from busway.transport.interfaces import is_exposed
from tests.support.net import Certificates

OTHERS = ["0.0.0.0", "[::]", "192.0.2.1"]
ASKING = busway.Settings(authenticate=lambda caller: caller.credentials == "right")


def faults(*addresses: str, settings: busway.Settings | None = None, **more: Any) -> list[str]:
    """What is refused of a server that listens there, all of which other hosts can reach."""
    tls = more.pop("tls", None)
    found = Exposure(**more).faults([parse(one) for one in addresses], settings or busway.Settings(), tls)
    return [text.format(at=at) for text, at, _ in found]


@pytest.mark.parametrize("host", OTHERS)
async def test_tcp_without_authentication_is_refused(host: str) -> None:
    server = busway.serve(f"tcp://{host}:0")
    with pytest.raises(busway.ListenFailed, match=r"--ca FILE.*authenticate=.*127\.0\.0\.1.*--insecure"):
        await server.start()


async def test_http_without_keys_is_refused() -> None:
    """Also if the native addresses are guarded: each way in is judged by its own authentication."""
    server = busway.serve("tcp://127.0.0.1:0", http="0.0.0.0:0")
    with pytest.raises(busway.ListenFailed, match=r"http://0\.0\.0\.0:0 is refused.*--http-keys FILE"):
        await server.start()
    assert server.state != "serving"


async def test_a_cluster_without_a_key_is_refused() -> None:
    server = busway.serve("tcp://0.0.0.0:0", settings=ASKING, cluster="shop")
    with pytest.raises(busway.ListenFailed, match=r"a cluster at .* without a key.*--cluster-key-file"):
        await server.start()
    async with busway.serve("tcp://127.0.0.1:0", cluster="shop") as alone:
        assert alone.state == "serving"


async def test_insecure_allows_it_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    async with busway.serve("tcp://0.0.0.0:0", http="0.0.0.0:0", cluster="shop", insecure=True) as server:
        (bound,) = server.bound
        assert bound.startswith("tcp://0.0.0.0:")
        assert server.http.startswith("http://0.0.0.0:")
    told = [one.getMessage() for one in caplog.records if "(insecure)" in one.getMessage()]
    assert [one.partition("without ")[2] for one in told] == [
        "authentication (insecure)",
        "a key of the cluster (insecure)",
        "keys (insecure)",
    ]


def test_the_blocking_face_refuses_too() -> None:
    with pytest.raises(busway.ListenFailed, match="is refused"):
        busway.sync.serve("tcp://0.0.0.0:0")
    with busway.sync.serve("tcp://0.0.0.0:0", insecure=True) as server:
        assert server.bound[0].startswith("tcp://0.0.0.0:")


def test_what_guards_an_address() -> None:
    mutual, one_sided = busway.TLS(cert="c", key="k", ca="a"), busway.TLS(cert="c", key="k")
    everywhere = "tls://0.0.0.0:1"
    assert faults("tcp://0.0.0.0:1", settings=ASKING) == []
    assert faults(everywhere, tls=mutual) == []
    assert len(faults(everywhere, tls=one_sided)) == 1
    assert len(faults("tcp://0.0.0.0:1", everywhere, tls=mutual)) == 1, "certificates guard no tcp:// address"
    assert len(faults(everywhere, tls=mutual, keyless=True)) == 1
    assert faults(keyless=True) == []


async def test_mutual_tls_is_a_way_without_insecure(certificates: Certificates) -> None:
    tls = busway.TLS(cert=certificates.server, key=certificates.server_key, ca=certificates.ca)
    client = busway.TLS(cert=certificates.client, key=certificates.client_key, ca=certificates.ca)
    async with busway.serve("tls://0.0.0.0:0", tls=tls) as server:
        async with busway.connect(server.addresses[0], tls=client) as bus:
            assert await bus.publish("a", b"", confirm=True) == 0


@pytest.mark.parametrize(
    ("host", "exposed"),
    [
        ("127.0.0.1", False),
        ("127.8.9.10", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("localhost", False),
        ("0.0.0.0", True),
        ("::", True),
        ("10.1.2.3", True),
        ("no-such-host.invalid", False),
    ],
)
async def test_which_hosts_others_can_reach(host: str, *, exposed: bool) -> None:
    assert await is_exposed(host) is exposed


async def test_a_name_with_one_address_that_others_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("busway.transport.interfaces._resolve", lambda _host: _names())
    assert await is_exposed("two.example")


async def _names() -> list[str]:
    return ["127.0.0.1", "10.0.0.1"]
