"""Invalid messages, subscriptions and clients: each gets a system error, and other clients continue."""

import contextlib
import errno
import os
import random
import resource
import threading
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
from tests.support.mounts import mounted

LARGEST = 1016
"""Bytes of a payload that the original takes; here it is the least that has to pass."""


@pytest.fixture(scope="module")
def bus():
    with mounted("fusebus") as made:
        yield made


@pytest.fixture
def folder(bus) -> Path:
    """The mount, which is to work after each test as before."""
    yield bus.folder
    [channel] = register(bus.folder, "CHECK")
    with Raw(bus.folder) as client, Raw(bus.folder) as publisher:
        client.subscribe("CHECK")
        client.all()
        publisher.publish(channel, b"still here")
        assert client.wait(1)[-1].data == b"still here"
    assert bus.process.poll() is None


WRONG = {
    "one byte": b"\2",
    "half a word": b"\2\0\0\0",
    "seven bytes": bytes(7),
    "a message without a channel": WORD.pack(MESSAGE),
    "a message with half a channel": WORD.pack(MESSAGE) + b"\0\0\0\0",
    "unsubscribe without a number": WORD.pack(UNSUBSCRIBE),
    "unsubscribe with half a number": WORD.pack(UNSUBSCRIBE) + b"\0\0\0\0",
    "type 3": WORD.pack(3) + b"CHANNEL_A",
    "the largest type": WORD.pack((1 << 64) - 1) + WORD.pack(0) + b"x",
    "another byte order": MESSAGE.to_bytes(8, "big") + WORD.pack(0) + b"x",
    "text": b"hello, is there anybody?\n",
    "broken UTF-8 as a pattern": WORD.pack(SUBSCRIBE) + b"\xff\xfe",
    "an open bracket": WORD.pack(SUBSCRIBE) + b"(",
    "an open class": WORD.pack(SUBSCRIBE) + b"[a",
    "nothing to repeat": WORD.pack(SUBSCRIBE) + b"*",
    "a reference back": WORD.pack(SUBSCRIBE) + rb"(a)\1",
    "a NUL within a pattern": WORD.pack(SUBSCRIBE) + b"a\0b",
    "a subscription that is not there": WORD.pack(UNSUBSCRIBE) + WORD.pack(7),
    "the largest subscription": WORD.pack(UNSUBSCRIBE) + WORD.pack((1 << 64) - 1),
    "a channel that is not there": WORD.pack(MESSAGE) + WORD.pack(900) + b"x",
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG)
def test_what_can_not_be_is_refused(folder: Path, data: bytes) -> None:
    register(folder, "A")
    with Raw(folder) as client, Raw(folder) as witness:
        witness.subscribe(".*")
        witness.all()
        with refused(errno.EINVAL, errno.ENOENT, errno.ENXIO):
            os.write(client.fd, data)
        client.subscribe("A")  # the file is as good as before
        client.publish(listed(folder).index("A"), b"good")
        assert witness.wait(1)[-1].data == b"good"


def test_an_unsubscription_with_more_behind_it_is_refused(folder: Path) -> None:
    with Raw(folder) as client:
        number = client.subscribe("A")
        with refused(errno.EINVAL):
            os.write(client.fd, WORD.pack(UNSUBSCRIBE) + WORD.pack(number) + b"x")


def test_unsubscribing_twice(folder: Path) -> None:
    with Raw(folder) as client:
        number = client.subscribe("A")
        client.unsubscribe(number)
        with refused(errno.EINVAL, errno.ENOENT, errno.ENXIO):
            client.unsubscribe(number)


def test_an_empty_pattern_matches_no_channel(folder: Path) -> None:
    """It is a name that no channel has; refused or taken, nothing comes of it."""
    with Raw(folder) as client:
        with contextlib.suppress(OSError):
            client.subscribe("")
        assert not client.ready()


def test_an_empty_message_is_a_message(folder: Path) -> None:
    [channel] = register(folder, "EMPTY")
    with Raw(folder) as client:
        client.subscribe("EMPTY")
        assert client.publish(channel, b"") == 16
        [message] = client.wait(1)
        assert (message.size, message.stride, message.data) == (0, 0, b"")


def test_an_empty_write_does_nothing(folder: Path) -> None:
    """It may be refused or not: no message, no subscription, and the client goes on as before."""
    [channel] = register(folder, "NOTHING")
    with Raw(folder) as client, Raw(folder) as publisher:
        for one in (client, publisher):
            try:
                assert os.write(one.fd, b"") == 0
            except OSError as error:
                assert error.errno == errno.EINVAL
        assert not client.ready()
        publisher.publish(channel, b"before")
        assert not client.ready()
        assert client.subscribe("NOTHING") == 0
        publisher.publish(channel, b"after")
        assert [message.data for message in client.wait(2)] == [b"before", b"after"]


def test_the_largest_message_of_the_original_passes(folder: Path) -> None:
    [channel] = register(folder, "LARGE")
    data = os.urandom(LARGEST)
    with Raw(folder) as client:
        client.subscribe("LARGE")
        client.publish(channel, data)
        assert client.wait(1)[0].data == data


def test_a_message_beyond_the_limit_is_refused_whole() -> None:
    with mounted("fusebus", "--max-message", 2000) as made:
        [channel] = register(made.folder, "A")
        with Raw(made.folder) as client:
            client.subscribe("A")
            for size in (2001, 4096, 5000, 200_000, 3 << 20):
                with refused(errno.EMSGSIZE):
                    client.publish(channel, b"x" * size)
            client.publish(channel, b"y" * 2000)
            assert [(message.size, message.serno) for message in client.wait(1)] == [(2000, 0)]
            assert not client.ready()


@pytest.mark.parametrize("room", [1, 8, 39, 40, 41, META.size + 99])
def test_a_read_without_room_for_a_message(folder: Path, room: int) -> None:
    """It is told, takes nothing, and the message is there for a larger one."""
    [channel] = register(folder, "ROOM")
    with Raw(folder) as client:
        client.subscribe("ROOM")
        client.all()
        client.publish(channel, b"x" * 100)
        assert client.ready(60)
        with refused(errno.EMSGSIZE, errno.EINVAL):
            os.read(client.fd, room)
        assert [message.size for message in client.read(META.size + padded(100))] == [100]


def test_garbage(folder: Path) -> None:
    """Thousands of writes that nobody would make; most are refused, and those that happen to be right are messages."""
    dice = random.Random(7)
    codes = set()
    with Raw(folder) as client:
        for _ in range(3000):
            kind = dice.choice([0, 1, 2, 3, 255, 1 << 63, dice.getrandbits(64)])
            head = dice.choice([WORD.pack(kind), WORD.pack(kind)[: dice.randrange(8)], dice.randbytes(8)])
            try:
                os.write(client.fd, head + dice.randbytes(dice.choice([0, 1, 7, 8, 9, 100, 1000])))
            except OSError as error:
                codes.add(error.errno)
            try:
                with (folder / "channels").open("ab", buffering=0) as file:
                    file.write(dice.randbytes(3) + b"\0")
            except OSError as error:
                codes.add(error.errno)
    assert codes <= {errno.EINVAL, errno.ENOENT, errno.ENXIO, errno.EMSGSIZE, errno.ENOSPC}


def test_a_pattern_that_is_hard_to_match(folder: Path) -> None:
    """Regular expressions take a time that grows with the name alone; with others this one would never end."""
    [channel] = register(folder, "a" * 60)
    with Raw(folder) as client:
        client.subscribe("(a*)*(a|aa)*b")
        client.subscribe("(a*)*")
        client.publish(channel, b"x")
        assert client.wait(1)[0].channel == channel


def test_a_pattern_that_is_too_large(folder: Path) -> None:
    with Raw(folder) as client, refused(errno.EINVAL, errno.EMSGSIZE, errno.E2BIG, errno.ENOMEM):
        client.subscribe("((((a{1000}){1000}){1000}){1000}){1000}")


def test_a_thousand_open_files(folder: Path) -> None:
    """Each is a client of its own; each gets the message; all can be closed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    [channel] = register(folder, "THOUSAND")
    try:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Raw(folder)) for _ in range(1000)]
            for client in clients:
                client.subscribe("THOUSAND")
            clients[0].publish(channel, b"to all")
            clients[-1].publish(channel, b"of you")
            got = [client.wait(2) for client in clients]
            assert {tuple(message.data for message in one) for one in got} == {(b"to all", b"of you")}
            [(first, last)] = {tuple(message.client for message in one) for one in got}
            assert first != last
            assert not any(client.ready() for client in clients)
        for _ in range(1000):  # and they are given back
            Raw(folder).close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_at_once(folder: Path) -> None:
    """Threads that publish, subscribe, read and close at the same time: each reader gets all messages of each publisher, in order."""
    [channel] = register(folder, "BUSY")
    failures: list[BaseException] = []

    def publish(who: int) -> None:
        with Raw(folder) as client:
            for number in range(200):
                client.publish(channel, b"%d %d" % (who, number))

    def read() -> None:
        try:
            with Raw(folder) as client:
                client.subscribe("BUSY")
                found = [tuple(map(int, message.data.split())) for message in client.wait(600)]
                for who in range(3):
                    assert [number for one, number in found if one == who] == list(range(200))
        except BaseException as error:
            failures.append(error)

    def come_and_go() -> None:
        for _ in range(100):
            with Raw(folder) as client:
                client.subscribe("BUS.")

    threads = [threading.Thread(target=publish, args=(who,)) for who in range(3)]
    threads += [threading.Thread(target=read) for _ in range(3)] + [threading.Thread(target=come_and_go)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)


def test_old_messages_go_and_the_gap_shows() -> None:
    """A reader that is too slow begins at the oldest that is kept; serial numbers tell how many it missed."""
    with mounted("fusebus", "--messages", 100) as made:
        [channel] = register(made.folder, "A")
        with Raw(made.folder) as slow, Raw(made.folder) as publisher:
            slow.subscribe("A")
            for number in range(250):
                publisher.publish(channel, b"%d" % number)
            found = slow.wait(100)
            assert [int(message.data) for message in found] == list(range(150, 250))
            assert found[0].serno == 150
            assert not slow.ready()
