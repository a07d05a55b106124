"""The document of the older bus as a file system, sentence by sentence: each test quotes the sentence it keeps.

The client has structs of its own and knows nothing of Busway (raw.py); the bus is a process that runs `busway fusebus DIR`. How reads wait is in
test_document_reading.py, the channel registry in test_document_channels.py.
"""

import errno
import itertools
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fusebus_client import (
    MESSAGE,
    META,
    SUBSCRIBE,
    UNSUBSCRIBE,
    WORD,
    Raw,
    listed,
    padded,
    refused,
    register,
)
from tests.support.mounts import kind, mounted

names = (f"DOCUMENT_{number}_" for number in itertools.count())


@pytest.fixture(scope="module")
def shared():
    """One mount for the tests that need no channels of certain numbers."""
    with mounted("fusebus") as made:
        yield made.folder


@pytest.fixture
def fresh():
    with mounted("fusebus") as made:
        yield made.folder


@pytest.fixture
def name() -> str:
    """A name that no other test has: with it begin the names of a test's channels."""
    return next(names)


# The first part.


def test_implemented_as_a_file_system(shared: Path) -> None:
    """ "Fusebus is an Inter-Process Communication (IPC) message bus implemented as a Filesystem in User SpacE (FUSE)." """
    assert kind(shared).partition(".")[0] == "fuse"


OTHER = """
import os, struct, sys
folder, name = sys.argv[1:]
channels = open(folder + "/channels", "ab", buffering=0)
channels.write(name.encode() + b"A\\n")
number = open(folder + "/channels").read().split("\\n").index(name + "A")
bus = os.open(folder + "/fusebus", os.O_RDWR)
os.write(bus, struct.pack("@Q", 0) + name.encode() + b"B")
os.write(bus, struct.pack("@QQ", 2, number) + b"from the other process")
data = os.read(bus, 4096)
print(data[40 : 40 + struct.unpack_from("@Q", data, 24)[0]].decode())
"""


def test_between_processes(shared: Path, name: str) -> None:
    """ "Inter-Process Communication": another process, another Python without Busway."""
    there, back = register(shared, name + "A", name + "B")
    with Raw(shared) as bus:
        bus.subscribe(name + "A")
        command = [sys.executable, "-I", "-S", "-c", OTHER, str(shared), name]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            [message] = bus.wait(1)
            assert (message.channel, message.data) == (there, b"from the other process")
            bus.publish(back, b"from here")
            assert process.communicate(timeout=60)[0] == b"from here\n"


def test_two_files(fresh: Path) -> None:
    """ "When mounted the filesystem exposes two files": `channels` and `fusebus`."""
    assert sorted(one.name for one in fresh.iterdir()) == ["channels", "fusebus"]
    assert all((fresh / name).is_file() for name in ("channels", "fusebus"))


def test_written_in_parts_at_once(shared: Path, name: str) -> None:
    """A `write()` is one message, also if its parts lie in different places."""
    [channel] = register(shared, name)
    with Raw(shared) as client:
        client.subscribe(name)
        assert os.writev(client.fd, [WORD.pack(MESSAGE), WORD.pack(channel), b"two ", b"words"]) == 25
        assert [message.data for message in client.wait(1)] == [b"two words"]


# "Subscription Mechanism"


def test_not_every_message(shared: Path, name: str) -> None:
    """ "Not every message delivered to the bus is received by every client. Only messages on channels that are `subscribe()` ed by the
    client will be received." """
    a, b, end = register(shared, name + "A", name + "B", name + "END")
    with Raw(shared) as publisher, Raw(shared) as one, Raw(shared) as two, Raw(shared) as none:
        one.subscribe(name + "A")
        two.subscribe(name + "B")
        for client in (one, two):
            client.subscribe(name + "END")
        for channel, data in ((a, b"1"), (b, b"2"), (a, b"3"), (end, b"4")):
            publisher.publish(channel, data)
        assert [message.data for message in one.wait(3)] == [b"1", b"3", b"4"]
        assert [message.data for message in two.wait(2)] == [b"2", b"4"]
        assert not any(client.ready() for client in (one, two, none, publisher))


def test_subscriptions_are_made_and_removed_by_write(shared: Path, name: str) -> None:
    """ "Subscriptions are created/removed using `write()` with a special header indicating subscription modification." """
    a, b = register(shared, name + "A", name + "B")
    with Raw(shared) as client:
        client.subscribe(name + "B")
        number = os.write(client.fd, WORD.pack(SUBSCRIBE) + f"{name}A".encode())
        client.publish(a, b"1")
        assert [message.data for message in client.wait(1)] == [b"1"]
        os.write(client.fd, WORD.pack(UNSUBSCRIBE) + WORD.pack(number))
        client.publish(a, b"2")
        client.publish(b, b"3")
        assert [message.data for message in client.wait(1)] == [b"3"]
        assert not client.ready()


def test_an_unsubscribed_client_does_not_get_what_was_waiting(shared: Path, name: str) -> None:
    """ "Subscriptions are … removed": also for messages that were published before and are not read yet."""
    a, b = register(shared, name + "A", name + "B")
    with Raw(shared) as client:
        number = client.subscribe(name + "A")
        client.publish(a, b"1")
        assert client.ready(60)
        client.unsubscribe(number)
        assert not client.ready()
        client.subscribe(name + "B")
        client.publish(b, b"2")
        assert [message.data for message in client.wait(1)] == [b"2"]


def test_of_two_subscriptions_one_is_left(shared: Path, name: str) -> None:
    """ "matching any outstanding subscriptions": of two that match, one may go."""
    a, b = register(shared, name + "A", name + "B")
    with Raw(shared) as client:
        exact, every = client.subscribe(name + "A"), client.subscribe(name + ".*")
        assert exact != every
        client.publish(a, b"1")
        assert [message.data for message in client.wait(1)] == [b"1"]
        client.unsubscribe(every)
        for channel, data in ((b, b"2"), (a, b"3")):
            client.publish(channel, data)
        assert [message.data for message in client.wait(1)] == [b"3"]
        assert not client.ready()


def test_numbers_of_subscriptions_are_each_clients_own(shared: Path, name: str) -> None:
    """Nobody ends the subscription of another client."""
    [channel] = register(shared, name)
    with Raw(shared) as one, Raw(shared) as two:
        number = one.subscribe(name)
        with refused(errno.EINVAL, errno.ENOENT, errno.EPERM):
            two.unsubscribe(number)
        two.publish(channel, b"still")
        assert [message.data for message in one.wait(1)] == [b"still"]


def test_many_subscriptions(shared: Path, name: str) -> None:
    """Each of very many can be removed again, and only that one goes."""
    channels = register(shared, *(f"{name}{number}" for number in range(100)))
    with Raw(shared) as client:
        numbers = [client.subscribe(f"{name}{number}", number) for number in range(100)]
        assert len(set(numbers)) == 100
        for number in numbers[::2]:
            client.unsubscribe(number)
        for place, channel in enumerate(channels):
            client.publish(channel, b"%d" % place)
        assert [int(message.data) for message in client.wait(50)] == list(range(1, 100, 2))
        assert not client.ready()


def test_a_number_that_a_write_can_not_tell(shared: Path, name: str) -> None:
    """A write can't return more than it was long. The original subscribed then and said EIO; here it is refused and nothing has happened."""
    channel, other = register(shared, name, "S")
    with Raw(shared) as client:
        numbers = [client.subscribe("S") for _ in range(10)]
        assert numbers == list(range(10))
        with refused(errno.ENOSPC):
            client.subscribe("S")
        client.unsubscribe(4)
        assert client.subscribe("S") == 4  # the lowest that is free
        assert client.subscribe(name) == 10  # there is room for it: eight bytes more than the name has
        assert client.subscribe("S", zeros=20) == 11
        for number in (*range(10), 11):
            client.unsubscribe(number)
        client.publish(other, b"1")
        client.publish(channel, b"2")
        assert [message.data for message in client.wait(1)] == [b"2"]
        assert not client.ready()


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("CHANNEL_A", {"CHANNEL_A"}),
        ("CHANNEL_.*", {"CHANNEL_A", "CHANNEL_B", "CHANNEL_"}),
        ("CHANNEL_.", {"CHANNEL_A", "CHANNEL_B"}),
        ("^CHANNEL_A$", {"CHANNEL_A"}),
        (".*", {"CHANNEL_A", "CHANNEL_B", "CHANNEL_", "MY_CHANNEL_A", "A"}),
        ("A|CHANNEL_B", {"A", "CHANNEL_B"}),
        ("[AB]", {"A"}),
        ("HANNEL", set()),
        ("channel_a", set()),
        ("(?i)channel_a", {"CHANNEL_A"}),
    ],
)
def test_a_name_or_a_pattern(patterned: Path, pattern: str, matches: set[str]) -> None:
    """ "Subscriptions are specified as string channel name or as a regex pattern of channels to match." It matches the whole name."""
    known = listed(patterned)
    with Raw(patterned) as client:
        client.subscribe(pattern)
        assert {known[message.channel] for message in client.wait(len(matches))} == matches
        assert not client.ready()


@pytest.fixture(scope="module")
def patterned():
    """A bus with a message in each of some channels."""
    with mounted("fusebus") as made:
        channels = register(made.folder, "CHANNEL_A", "CHANNEL_B", "CHANNEL_", "MY_CHANNEL_A", "A")
        with Raw(made.folder) as publisher:
            for channel in channels:
                publisher.publish(channel, b"x")
        yield made.folder


@pytest.mark.parametrize("odd", ["A+B", "price(eth", "[x", "a.b", "what?", "a|b", "(?i)a"])
def test_a_channel_name_is_a_name_whatever_is_in_it(shared: Path, name: str, odd: str) -> None:
    """ "Subscriptions are specified as string channel name or as a regex": a name that is no expression, or another one, is still a name."""
    [channel] = register(shared, odd)
    with Raw(shared) as client:
        client.subscribe(odd)
        client.all()
        client.publish(channel, name.encode())
        assert client.wait(1)[-1].data == name.encode()


def test_a_channel_that_comes_later(shared: Path, name: str) -> None:
    """ "a regex pattern of channels to match": those too that are registered after the subscription."""
    with Raw(shared) as client:
        client.subscribe(name + ".*")
        [channel] = register(shared, name + "LATER")
        client.publish(channel, b"x")
        assert [message.channel for message in client.wait(1)] == [channel]


def test_the_first_message_not_yet_received(shared: Path, name: str) -> None:
    """ "When a client calls `read()` on the `fusebus` file it will be delivered the first message it has not yet received matching any
    outstanding subscriptions it has registered." """
    a, b, other = register(shared, name + "A", name + "B", name + "OTHER")
    with Raw(shared) as publisher, Raw(shared) as client:
        client.subscribe(name + "[AB]")
        for number, channel in enumerate((a, other, b, a, other, b)):
            publisher.publish(channel, b"%d" % number)
        seen = [client.read(META.size + padded(1)) for _ in range(4)]  # room for one
        assert [[message.data for message in each] for each in seen] == [[b"0"], [b"2"], [b"3"], [b"5"]]
        assert not client.ready()


def test_history_for_a_new_client(shared: Path, name: str) -> None:
    """ "the first message it has not yet received": of a new client that is the oldest one that is kept."""
    a, b = register(shared, name + "A", name + "B")
    with Raw(shared) as publisher:
        for number in range(100):
            publisher.publish((a, b)[number % 2], b"%d" % number)
        with Raw(shared) as late:
            late.subscribe(name + "B")
            assert [int(message.data) for message in late.wait(50)] == list(range(1, 100, 2))
            publisher.publish(b, b"live")
            assert [message.data for message in late.wait(1)] == [b"live"]


def test_a_subscription_sees_messages_before_it_that_are_not_passed(shared: Path, name: str) -> None:
    """ "not yet received": what a client has not read is there for a subscription that it makes later; each comes once."""
    a, b = register(shared, name + "A", name + "B")
    with Raw(shared) as client:
        client.subscribe(name + "A")
        client.publish(b, b"b")
        client.publish(a, b"a")
        assert client.ready(60)
        client.subscribe(name + "B")
        assert [message.data for message in client.wait(2)] == [b"b", b"a"]
        assert not client.ready()


def test_also_those_that_are_older_than_what_was_read(shared: Path, name: str) -> None:
    """ "the first message it has not yet received": one that a later subscription takes has not been received, though newer ones were."""
    a, b = register(shared, name + "A", name + "B")
    with Raw(shared) as client:
        client.subscribe(name + "A")
        for channel, data in ((b, b"1"), (a, b"2"), (b, b"3")):
            client.publish(channel, data)
        assert [message.data for message in client.wait(1)] == [b"2"]
        client.subscribe(name + "B")
        assert [message.data for message in client.wait(2)] == [b"1", b"3"]
        assert not client.ready()


def test_nothing_is_received_twice(shared: Path, name: str) -> None:
    """ "it has not yet received": who unsubscribes and subscribes again does not get the same again, but what came in between."""
    [channel] = register(shared, name)
    with Raw(shared) as client:
        number = client.subscribe(name)
        client.publish(channel, b"1")
        assert [message.data for message in client.wait(1)] == [b"1"]
        client.unsubscribe(number)
        client.publish(channel, b"2")
        client.subscribe(name + ".*")
        assert [message.data for message in client.wait(1)] == [b"2"]
        assert not client.ready()


def test_it_has_no_position(shared: Path) -> None:
    """ "communication is done with semantic `read()` and `write()` operations": places in the file mean nothing, and are refused."""
    with Raw(shared) as client:
        for wrong in (lambda: os.lseek(client.fd, 0, os.SEEK_SET), lambda: os.pread(client.fd, 100, 0)):
            with refused(errno.ESPIPE):
                wrong()


def test_overlapping_subscriptions_deliver_once(shared: Path, name: str) -> None:
    """ "the first message … matching any": one copy, however many match."""
    [channel] = register(shared, name)
    with Raw(shared) as client:
        for pattern in (name, name, name + ".*", ".*" + name):
            client.subscribe(pattern)
        client.publish(channel, b"once")
        assert [message.data for message in client.wait(1)] == [b"once"]
        assert not client.ready()


def test_in_the_order_in_which_they_were_published(shared: Path, name: str) -> None:
    """ "the first message": whoever published it; all readers see one order."""
    [channel] = register(shared, name)
    with Raw(shared) as one, Raw(shared) as two, Raw(shared) as left, Raw(shared) as right:
        left.subscribe(name)
        right.subscribe(name + ".*")
        for number in range(60):
            (one, two)[number % 2].publish(channel, b"%d" % number)
        first, second = left.wait(60), right.wait(60)
        assert [int(message.data) for message in first] == list(range(60))
        assert first == second


# "Metadata"


@pytest.mark.parametrize("size", [1, 4, 11, 15, 16, 17, 31, 32, 33, 512, 1000, 1016])
def test_every_message_has_its_header(shared: Path, name: str, size: int) -> None:
    """ "Every message delived by the bus through `read()` is prefixed by a fixed length message header with the following specification" """
    [channel] = register(shared, name)
    data = os.urandom(size)
    with Raw(shared) as publisher, Raw(shared) as reader:
        reader.subscribe(name)
        publisher.publish(channel, data)
        read = os.read(reader.fd, 4096)
        found = struct.unpack("@QQQQQ", read[:40])
        assert found[0] == channel, "uint64_t channel;  //< channel number the message was published on"
        assert found[3] == size, (
            "uint64_t size;     //< number of bytes following this header that contain message data"
        )
        assert found[4] == padded(size) == len(read) - 40, (
            "uint64_t stride;   //< number of bytes … before the start of the next header"
        )
        assert read[40 : 40 + size] == data
        assert read[40 + size :] == bytes(padded(size) - size)


def test_serial_numbers_are_global(fresh: Path) -> None:
    """ "uint64_t serno;    //< global serial number of the message": one row for all channels and publishers, without gaps."""
    a, b = register(fresh, "A", "B")
    with Raw(fresh) as one, Raw(fresh) as two:
        one.subscribe(".*")
        for channel in (a, b, a):
            one.publish(channel, b"x")
            two.publish(channel, b"y")
        messages = one.wait(6)
        assert [message.serno for message in messages] == list(range(messages[0].serno, messages[0].serno + 6))
        assert messages[0].serno == 0
        with Raw(fresh) as late:
            late.subscribe("B")
            assert [message.serno for message in late.wait(2)] == [2, 3]


def test_the_publisher_of_a_message(fresh: Path) -> None:
    """ "uint64_t client;   //< client id of the publisher of this message": each open file has its own."""
    [channel] = register(fresh, "A")
    with Raw(fresh) as one, Raw(fresh) as two, Raw(fresh) as reader:
        reader.subscribe("A")
        for publisher in (one, two, reader, two, one):
            publisher.publish(channel, b"x")
        clients = [message.client for message in reader.wait(5)]
        assert clients[0] == clients[4] != clients[1] == clients[3]
        assert clients[2] not in clients[:2]
        assert len(set(clients)) == 3


def test_whole_messages_as_many_as_fit(shared: Path, name: str) -> None:
    """ "number of bytes following this header before the start of the next header": a read has several messages, never a part of one."""
    [channel] = register(shared, name)
    with Raw(shared) as publisher, Raw(shared) as reader:
        reader.subscribe(name)
        for number in range(40):
            publisher.publish(channel, b"%02d" % number + b"x" * number)
        assert reader.ready(60)
        with Raw(shared) as other:  # which has seen that all are there
            other.subscribe(name)
            other.wait(40)
        whole = [META.size + padded(2 + number) for number in range(40)]
        first = os.read(reader.fd, sum(whole[:5]))
        assert len(first) == sum(whole[:5])
        second = os.read(reader.fd, sum(whole[5:12]) + whole[12] - 1)
        assert len(second) == sum(whole[5:12])
        assert [int(message.data[:2]) for message in reader.read()] == list(range(12, 40))
        assert not reader.ready()


# "Usage"
