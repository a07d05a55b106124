"""Where a node says that it is reached: where it listens, or if that is everywhere by its interfaces."""

import logging
import socket
from dataclasses import replace

import pytest

import busway
from busway.broker import server as module
from busway.cluster.members import advertise as told
from busway.cluster.members.advertise import advertised
from busway.cluster.node import MOST_ADDRESSES
from busway.transport import interfaces


def find(*four, six=()):
    return lambda version: list(four) if version == 4 else list(six)


def test_what_listens_at_one_place_is_told_as_it_is():
    bound = ("tcp://127.0.0.1:7420", "unix:/tmp/bus", "tls://srv1:7421")
    assert advertised(bound, find("10.0.0.1")) == bound


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_what_listens_everywhere_is_told_by_its_interfaces(scheme):
    bound = f"{scheme}://0.0.0.0:7420", "unix:/tmp/bus", f"{scheme}://[::]:7420"
    assert advertised(bound, find("10.0.0.1", "192.0.2.7", six=("fd00::2",))) == (
        f"{scheme}://10.0.0.1:7420",
        f"{scheme}://192.0.2.7:7420",
        "unix:/tmp/bus",
        f"{scheme}://[fd00::2]:7420",
    )


def test_no_more_than_a_node_may_have():
    assert len(advertised(["tcp://0.0.0.0:1"], find(*(f"10.0.0.{number}" for number in range(20))))) == MOST_ADDRESSES


def test_nothing_but_loopback_is_warned_of(caplog):
    assert advertised(["tcp://0.0.0.0:7420"], find()) == ("tcp://127.0.0.1:7420",)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "--advertise" in record.getMessage()


def test_the_interfaces_of_this_host():
    """Each is an address of this host, and none is of use here alone."""
    for version, family in ((4, socket.AF_INET), (6, socket.AF_INET6)):
        found = interfaces.hosts(version)
        assert len(found) == len(set(found))
        for host in found:
            assert not host.startswith(("127.", "::1", "169.254.", "fe80:"))
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((host, 0))


def test_a_host_without_a_way_out(monkeypatch):
    def nowhere(self, address):
        raise OSError("Network is unreachable")

    class Socket(socket.socket):
        connect = nowhere

    monkeypatch.setattr(interfaces.socket, "socket", Socket)
    monkeypatch.setattr(interfaces.socket, "if_nameindex", lambda: [(1, "lo")])
    assert interfaces.hosts(4) == []


@pytest.mark.parametrize(
    ("advertise", "expected"), [((), "tcp://10.0.0.1:{}"), (("tcp://srv1:7420",), "tcp://srv1:7420")]
)
async def test_a_broker_that_listens_everywhere(monkeypatch, advertise, expected):
    real = module.listen

    async def listen(address, factory, **more):
        """As if it listened everywhere; but tests stay on this host."""
        listener = await real(replace(address, host=address.host and "127.0.0.1"), factory, **more)
        if address.everywhere:
            listener.bound = replace(address, port=listener.address.port)
        return listener

    monkeypatch.setattr(module, "listen", listen)
    monkeypatch.setattr(told.advertised, "__defaults__", (find("10.0.0.1"),))
    place = busway.Cluster(name="test", advertise=advertise)
    async with busway.serve("tcp://0.0.0.0:0", cluster=place, insecure=True) as server:
        port = server.addresses[0].rpartition(":")[2]
        assert server._hub.peers.members.members.me.addresses == (expected.format(port),)
        assert server.addresses == (f"tcp://127.0.0.1:{port}",), "clients of this host go the short way"
