"""`busway.fuse.Client`: the two-file protocol without having to know it, on any mount."""

import errno
import select
import sys

import pytest

import busway.fuse
from busway.fuse import format as form
from tests.support.fusebus_client import Raw, listed, refused


@pytest.fixture(scope="module")
def folder():
    from tests.support.mounts import mounted

    with mounted("fusebus", "--max-message", 3 << 20, "--bytes", 32 << 20) as made:
        yield made.folder


@pytest.fixture
def client(folder):
    with busway.fuse.Client(folder) as made:
        yield made


def test_as_in_the_document(client):
    got = []
    a, b = client.channel("CHANNEL_A"), client.channel("CHANNEL_B")
    assert client.channels()[a] == "CHANNEL_A"
    client.subscribe("CHANNEL_[AB]", got.append)
    client.publish(a, b"Hello World!")
    assert client.handle(timeout=60) >= 1
    client.publish(b, "Goodbye!")
    assert client.handle(timeout=60) >= 1
    assert [(one.channel, one.data, one.meta.channel) for one in got[-2:]] == [
        ("CHANNEL_A", b"Hello World!", a),
        ("CHANNEL_B", b"Goodbye!", b),
    ]
    assert got[-1].meta.serno == got[-2].meta.serno + 1


def test_every_handler_that_takes_a_message_is_called(client):
    names, all_of_it, left_out = [], [], []
    client.channel("every(")
    client.subscribe("every.*", lambda one: all_of_it.append(one.data))
    client.subscribe("every(", lambda one: names.append(one.data))  # a name that is no regular expression
    number = client.subscribe("every.", lambda one: left_out.append(one.data))
    client.unsubscribe(number)
    client.publish("every(", b"x")
    assert client.handle(timeout=60) == 1
    assert (names, all_of_it, left_out) == ([b"x"], [b"x"], [])


def test_reading_without_waiting(client):
    client.subscribe("reading")
    assert client.read(timeout=0) == []
    assert not client.ready()
    client.publish("reading", b"1")
    assert client.ready()
    assert select.select([client], [], [], 0)[0]
    (one,) = client.read()
    assert (one.channel, one.data) == ("reading", b"1")


def test_more_subscriptions_than_a_short_pattern_has_room_for(client):
    assert [client.subscribe("a") for _ in range(50)] == list(range(50))


@pytest.mark.parametrize("size", [0, 1, 1016, 70_000, (1 << 20) - 16, 1 << 20, (2 << 20) + 5])
def test_messages_of_every_size(client, folder, size):
    client.subscribe(f"size{size}")
    payload = bytes(range(256)) * (size // 256 + 1)
    client.publish(f"size{size}", payload[:size])
    (one,) = client.read(timeout=60)
    assert one.data == payload[:size]


def test_errors_of_the_mount_come_through(client, folder):
    with refused(errno.EINVAL):
        client.subscribe("(")
    with refused(errno.EINVAL):
        client.channel("a*")
    with refused(errno.ENXIO):
        client.publish(999, b"x")
    with refused(errno.ENOENT):
        client.unsubscribe(999)
    with pytest.raises(KeyError):
        client.name(999)
    assert "a*" not in listed(folder)


def test_a_channel_that_another_has_registered(client, folder):
    client.subscribe("later")
    with busway.fuse.Client(folder) as other:
        other.publish("later", b"x")
        (one,) = client.read(timeout=60)
        assert one.channel == "later"
        assert next(iter(other_messages(folder, "later"))).data == b"x"


def other_messages(folder, pattern):
    with busway.fuse.Client(folder) as third:
        third.subscribe(pattern)
        yield next(iter(third))


def test_what_is_written_is_what_the_document_says(folder):
    with Raw(folder) as raw:
        assert form.subscribe("a") == (0).to_bytes(8, sys.byteorder) + b"a"
        assert form.unsubscribe(3) == b"".join(n.to_bytes(8, sys.byteorder) for n in (1, 3))
        assert form.message(4, b"x") == b"".join(n.to_bytes(8, sys.byteorder) for n in (2, 4)) + b"x"
        assert raw.fd >= 0
    with pytest.raises(ValueError, match="too few for the header"):
        list(form.messages(b"x" * 39))
    with pytest.raises(ValueError, match="incomplete"):
        list(form.messages(form.META.pack(0, 0, 0, 2, 16) + b"x"))
    assert [data for _, data in form.messages(form.META.pack(0, 0, 0, 1, 16) + b"x")] == [b"x"]  # without its padding


@pytest.mark.parametrize("name", ["", "a\nb", "a\n"])
def test_what_is_no_name_registers_nothing(client, name):
    before = client.channels()
    with pytest.raises(ValueError, match="can't be the name of a channel"):
        client.channel(name)
    assert client.channels() == before
