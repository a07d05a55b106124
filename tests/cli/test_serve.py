"""`busway serve` from start to stop, and without its optional libraries."""

import asyncio
import json
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

import busway
from busway.errors import Code
from tests.support import wire
from tests.support.peer import Peer


async def test_serve_as_in_the_t2_document(shell, tmp_path):
    serving = await shell.start(
        "serve", "--unix", tmp_path / "my_bus", "--tcp", "127.0.0.1:0", "--json", "--name", "t2"
    )
    assert "'t2'" in await serving.ready()
    told = json.loads(await serving.line())
    assert told["name"] == "t2"
    assert told["addresses"][0] == f"unix:{tmp_path}/my_bus"
    async with busway.connect(told["addresses"][0]) as unix, busway.connect(told["addresses"][1]) as tcp:
        async with unix.subscribe("x") as subscription:
            await tcp.publish("x", b"1")
            assert (await subscription.recv(timeout=60)).payload == b"1"
    done = await serving.end(signal.SIGTERM)
    assert done.code == 0
    for text in (told["addresses"][1], "busway sub", "busway pub", "busway info"):
        assert text in done.notes
    assert not (tmp_path / "my_bus").exists()


async def test_limits_are_settings(shell):
    serving = await shell.start(
        "serve", "--tcp", "127.0.0.1:0", "--json", "-q", "--frame", "64k", "--heartbeat", "2s", BUSWAY_SERVE_TOPIC="100"
    )
    address = json.loads(await serving.line())["addresses"][0]
    async with busway.connect(address) as bus:
        assert bus.server["limits"]["frame"] == 65536
        assert bus.server["limits"]["topic"] == 100
        assert bus.server["heartbeat"] == 2
        with pytest.raises(busway.LimitExceeded):
            await bus.publish("x", bytes(65536))
    done = await serving.end(signal.SIGINT)
    assert (done.code, done.notes) == (130, "")


async def test_json_over_http(shell, tmp_path):
    import aiohttp

    serving = await shell.start(
        "serve", "--tcp", "127.0.0.1:0", "--json", "--http", "127.0.0.1:0", "--http-cors", "*", "--http-body", "2k"
    )
    await serving.ready()
    url = json.loads(await serving.line())["http"]
    async with aiohttp.ClientSession() as session:
        async with session.get(url + "/?cmd=ping", headers={"Origin": "https://example.org"}) as response:
            assert (response.status, (await response.json())["body"]) == (200, "OK, PING")
        async with session.post(url, data=bytes(3000)) as response:
            assert response.status == 413
    done = await serving.end(signal.SIGTERM)
    assert (done.code, url in done.notes) == (0, True)

    for flags, says in (
        (("--http-cors", "*"), "give --http HOST:PORT"),
        (("--http", "nowhere"), "write HOST:PORT"),
        (("--http", "127.0.0.1:0", "--http-keys", tmp_path / "none"), "can't be read"),
    ):
        done = await shell.run("serve", "--tcp", "127.0.0.1:0", *flags)
        assert done.code == 2
        assert says in " ".join(done.notes.replace("│", " ").split())


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--mirror-of", "srv1"), "give --cluster or --servers"),
        (("--mirror-of", "srv1", "--cluster", "shop"), "folder for its replicas"),
        (("--mirror-of", "", "--cluster", "shop", "--data", "data"), "is empty"),
        (("--mirror-of", "me", "--name", "me", "--cluster", "shop", "--data", "data"), "is this broker itself"),
        (
            ("--mirror-of", "127.0.0.1:7610", "--tcp", "127.0.0.1:7610", "--cluster", "shop", "--data", "data"),
            "is this broker itself",
        ),
        (("--cluster", ""), "from 1 to 255 characters"),
    ],
)
async def test_a_mirror_without_what_it_needs(shell, flags, says):
    done = await shell.run("serve", "--tcp", "127.0.0.1:0", *flags)
    assert done.code == 2
    assert says in " ".join(done.notes.replace("│", " ").split())


async def test_pins_and_the_guid_are_in_the_data_folder_also_after_a_kill(shell, tmp_path):
    command = ("serve", "--tcp", "127.0.0.1:0", "--json", "-q", "--data", tmp_path / "data", "-f", "region=eu")
    serving = await shell.start(*command, "--kept", "1")
    first = json.loads(await serving.line())
    async with await Peer.join(SimpleNamespace(**first), 1, "manager") as peer:
        assert (await peer.keep("config", b"{}", wire.PIN)).code == Code.OK
        assert (await peer.keep("other", b"{}", wire.PIN)).code == Code.TOO_MANY_KEPT
        taken = await shell.run(*command)
        assert (taken.code, "in use by another server" in taken.notes) == (1, True)
        assert len(taken.notes.splitlines()) == 1
        await serving.end(signal.SIGKILL)
    serving = await shell.start(*command)
    second = json.loads(await serving.line())
    assert second["guid"] == first["guid"]
    async with await Peer.join(SimpleNamespace(**second), 2) as peer:
        assert await peer.subscribe(1, "**") == 1
        assert [(one.topic, one.payload, one.fields) for one in peer.got] == [("config", b"{}", {"region": "eu"})]
        shown = await shell.run("info", "--url", second["addresses"][0])
        assert shown.code == 0
        assert "pins on disk" in shown.out.decode()
    await serving.end(signal.SIGTERM)


async def test_shared_services_are_shown(shell, server):
    async with await Peer.join(server, 1, "adder") as peer:
        assert (await peer.serve(1, "sum", wire.SHARED | wire.ASKS)).code == Code.OK
        shown = (await shell.run("info")).out.decode()
        assert "shared services" in shown
        assert "adder" in shown


async def test_the_second_signal_stops_at_once(shell):
    serving = await shell.start("serve", "--tcp", "127.0.0.1:0", "--json", "-q", "--drain", "1h")
    address = json.loads(await serving.line())["addresses"][0]
    async with busway.connect(address, reconnect=None) as service, busway.connect(address, reconnect=None) as bus:
        async with service.serve("stuck") as requests:
            asking = asyncio.ensure_future(bus.request("stuck", timeout=60))
            await requests.recv(timeout=60)  # a request in flight: draining waits for it
            serving.process.send_signal(signal.SIGTERM)
            while bus.state == "connected" and not bus._core.broker_stopping:
                await asyncio.sleep(0)
            done = await serving.end(signal.SIGTERM)
            assert done.code == 0
            with pytest.raises((busway.Disconnected, busway.ServiceGone)):
                await asking


async def test_an_address_that_is_taken(shell, server):
    done = await shell.run("serve", "--tcp", server.addresses[0].removeprefix("tcp://"))
    assert done.code == 1
    assert "in use" in done.notes
    assert "port 0" in done.notes
    assert len(done.notes.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--cert", "c.pem", "--key", "k.pem"), "--tls HOST:PORT"),
        (("--tcp", "127.0.0.1:0", "--ca", "ca.pem"), "--tls HOST:PORT"),
        (("--tcp", "127.0.0.1:99999"), "99999"),
        (("--tcp", "http://x"), "unknown scheme"),
        (("--frame", "1"), "1024"),
        (("--heartbeat", "0"), "above zero"),
        (("--connections", "0"), "1 or more"),
        (("--tcp", "127.0.0.1:0", "--outbox", "99999999999g"), "must be at most"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
async def test_flags_that_cannot_be(shell, arguments, text):
    done = await shell.run("serve", "--for", "10ms", *arguments)
    assert (done.code, done.out) == (2, b""), done.notes
    assert text in done.notes
    assert "Traceback" not in done.notes


@pytest.mark.parametrize("content", [b"", b" \n"])
async def test_an_empty_key_of_a_cluster_lets_nobody_in(shell, tmp_path, content):
    """It is a mistake, as of a secret that was not mounted, and no open cluster."""
    file = tmp_path / "key"
    file.write_bytes(content)
    place = ("serve", "--for", "10ms", "--tcp", "127.0.0.1:0", "--cluster", "vault")
    done = await shell.run(*place, "--cluster-key-file", file)
    assert (done.code, done.out) == (2, b""), done.notes
    assert "is empty" in done.notes
    done = await shell.run(*place, BUSWAY_CLUSTER_KEY=content.decode())
    assert (done.code, done.out) == (2, b""), done.notes
    assert "BUSWAY_CLUSTER_KEY is empty; unset it" in " ".join(done.notes.split())
    with pytest.raises(ValueError, match="use None for a cluster without a key"):
        busway.Cluster(name="vault", key=content)
    with pytest.raises(ValueError, match="use None for a cluster without a key"):
        busway.serve(cluster="vault", key=content)


@pytest.mark.parametrize(("servers", "told"), [("0", "port 0"), (",,,", "names no server")])
async def test_a_list_of_servers_that_leads_nowhere(shell, servers, told):
    done = await shell.run("serve", "--for", "10ms", "--tcp", "127.0.0.1:0", "--servers", servers)
    assert (done.code, done.out) == (2, b"")
    assert told in " ".join(done.notes.split())


async def test_it_says_of_which_cluster_it_is_a_node_and_who_is_linked(shell, tmp_path):
    async with busway.serve("tcp://127.0.0.1:0", name="west", cluster="shop") as west:
        servers = f"{west.addresses[0]},127.0.0.1:1"
        serving = await shell.start(
            *("serve", "--tcp", "127.0.0.1:0", "--json", "--name", "east", "--data", tmp_path / "data"),
            *("--cluster", "shop", "--servers", servers, "--mirror-of", "west"),
        )
        told = json.loads(await serving.line())
        assert (told["cluster"], told["mirror_of"]) == ("shop", "west")
        assert told["servers"] == [west.addresses[0], "tcp://127.0.0.1:1"]
        async with busway.connect(told["addresses"][0]) as bus:
            while len((await bus.request("$bus/cluster")).json()["nodes"]) < 2:
                await asyncio.sleep(0.01)
        done = await serving.end(signal.SIGTERM)
    assert "as a node of the cluster 'shop', with 2 servers in its list, as the mirror of 'west'" in done.notes
    assert f" INFO busway.cluster.links: cluster shop: west ({west.guid[:8]}) is linked\n" in done.notes
    alone = await shell.run("serve", "--for", "10ms", "--tcp", "127.0.0.1:0", "--json")
    assert json.loads(alone.out).keys() == {"addresses", "guid", "name", "storage"}


async def test_a_misspelt_setting_of_the_list_of_servers_is_told(shell, tmp_path):
    file = tmp_path / "list.json"
    file.write_text('[{"connection": {"port": 1, "tiemout": "1s"}}]')
    serve = ("serve", "--for", "10ms", "--tcp", "127.0.0.1:0", "--servers-file", file)
    done = await shell.run(*serve)
    assert done.code == 0
    (told,) = (line for line in done.notes.splitlines() if "tiemout" in line)
    assert told.endswith(f" WARNING busway.cluster: {file}: unknown settings: 'tiemout' (is 'timeout' meant?)")
    assert "tiemout" not in (await shell.run(*serve, "-q")).notes


async def test_a_host_that_is_none(shell):
    done = await shell.run("serve", "--tcp", "no-such-host.invalid")
    assert done.code == 1
    assert len(done.notes.splitlines()) == 1


async def test_serve_tls(shell, certificates):
    serving = await shell.start(
        *("serve", "--tls", "127.0.0.1:0", "--json", "-q"),
        *("--cert", certificates.server, "--key", certificates.server_key, "--ca", certificates.ca),
    )
    address = json.loads(await serving.line())["addresses"][0]
    known = ("--ca", certificates.ca, "--cert", certificates.client, "--key", certificates.client_key)
    told = await shell.run("info", "--url", address, "--json", *known)
    assert told.code == 0, told.notes
    assert json.loads(told.out)["connections"][0]["peer_name"] == "sensor-7.example"
    refused = await shell.run("info", "--url", address, "--ca", certificates.ca, "--connect-timeout", "5s")
    assert refused.code == 1
    assert refused.notes.startswith("busway: ")
    assert (await serving.end(signal.SIGTERM)).code == 0


async def test_serve_for_a_time(shell):
    done = await shell.run("serve", "--tcp", "127.0.0.1:0", "--for", "10ms")
    assert done.code == 0


def test_without_its_libraries():
    program = "import sys; sys.modules['typer'] = None; from busway.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=40, check=False)
    assert result.returncode == 1
    assert "pip install" in result.stderr
    assert "typer" in result.stderr.partition("pip install")[2], "packages, which there are without an index of Busway"
    assert len(result.stderr.splitlines()) == 1


async def test_an_address_that_other_hosts_reach(shell):
    done = await shell.run("serve", "--tcp", "0.0.0.0:0", "--for", "10ms")
    assert (done.code, done.out) == (1, b"")
    assert "tcp://0.0.0.0:0 is refused" in done.notes
    assert "--insecure" in done.notes
    done = await shell.run("serve", "--tcp", "0.0.0.0:0", "--for", "10ms", "--insecure", "--json")
    assert done.code == 0
    assert "  tcp://0.0.0.0:" in done.notes, "the banner shows what is bound"
    assert " WARNING busway.broker: tcp://0.0.0.0:0 is open to other hosts without authentication" in done.notes
    assert json.loads(done.out)["addresses"][0].startswith("tcp://127.0.0.1:"), "clients of this host go the short way"
