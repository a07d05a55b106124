"""How a read of `fusebus` waits, and how poll, select and epoll tell that it would not: on a bus that runs `busway fusebus DIR`.

The document says that messages are read with `read()` and stops there; the original never waited, and told wrongly whether there is something.
"""

import asyncio
import contextlib
import errno
import fcntl
import itertools
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fusebus_client import META, Raw, padded, parse, refused, register
from tests.support.mounts import PATIENCE, Later, mounted, until, waits

names = (f"READING_{number}_" for number in itertools.count())


@pytest.fixture(scope="module")
def folder():
    with mounted("fusebus") as made:
        yield made.folder


@pytest.fixture
def name() -> str:
    return next(names)


# read


def test_a_message_of_another_channel_wakes_no_reader(folder: Path, name: str) -> None:
    channel, other = register(folder, name + "A", name + "B")
    with Raw(folder) as reader, Raw(folder) as publisher, Raw(folder) as witness:
        reader.subscribe(name + "A")
        witness.subscribe(name + "B")
        later = Later(reader.read)
        publisher.publish(other, b"not for you")
        assert [message.data for message in witness.wait(1)] == [b"not for you"]
        assert not later.over()
        publisher.publish(channel, b"for you")
        assert [message.data for message in later.result()] == [b"for you"]


def test_a_read_waits_without_any_subscription(folder: Path, name: str) -> None:
    """There may be messages, but none for this client: until it subscribes, which it can while it waits."""
    [channel] = register(folder, name)
    with Raw(folder) as reader, Raw(folder) as publisher:
        publisher.publish(channel, b"old")
        later = Later(reader.read)
        reader.subscribe(name)
        assert [message.data for message in later.result()] == [b"old"]


def test_several_readers_of_one_message_are_woken(folder: Path, name: str) -> None:
    [channel] = register(folder, name)
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(Raw(folder)) for _ in range(5)]
        for reader in readers:
            reader.subscribe(name)
        waiting = [Later(reader.read) for reader in readers]
        with Raw(folder) as publisher:
            publisher.publish(channel, b"all")
        assert [[message.data for message in later.result()] for later in waiting] == [[b"all"]] * 5


def test_two_reads_of_one_client_get_one_message_each(folder: Path, name: str) -> None:
    """A message is delivered once to a client, also if two threads of it wait."""
    [channel] = register(folder, name)
    with Raw(folder) as reader, Raw(folder) as publisher:
        reader.subscribe(name)
        waiting = [Later(reader.read), Later(reader.read)]
        publisher.publish(channel, b"1")
        until(lambda: any(later.over() for later in waiting), "one of them returned")
        assert not all(later.over() for later in waiting)
        publisher.publish(channel, b"2")
        assert sorted(later.result()[0].data for later in waiting) == [b"1", b"2"]


def test_while_one_waits_all_others_work(folder: Path, name: str) -> None:
    waiting, channel = register(folder, name + "WAIT", name)
    with Raw(folder) as reader, Raw(folder) as client:
        reader.subscribe(name + "WAIT")
        later = Later(reader.read)
        client.subscribe(name)
        for number in range(50):
            client.publish(channel, b"%d" % number)
            assert [message.data for message in client.wait(1)] == [b"%d" % number]
        register(folder, name + "NEW")
        assert not later.over()
        client.publish(waiting, b"end")
        assert [message.data for message in later.result()] == [b"end"]


# O_NONBLOCK


def test_with_o_nonblock_an_empty_read_says_eagain(folder: Path, name: str) -> None:
    [channel] = register(folder, name)
    with Raw(folder, os.O_NONBLOCK) as client:
        with refused(errno.EAGAIN):
            client.read()  # no subscription
        client.subscribe(name)
        with refused(errno.EAGAIN):
            client.read()
        client.publish(channel, b"x")
        assert [message.data for message in client.wait(1)] == [b"x"]
        with refused(errno.EAGAIN):
            client.read()


def test_o_nonblock_may_be_set_and_cleared_later(folder: Path, name: str) -> None:
    """As every event loop does with the files of others."""
    [channel] = register(folder, name)
    with Raw(folder) as client:
        client.subscribe(name)
        before = fcntl.fcntl(client, fcntl.F_GETFL)
        fcntl.fcntl(client, fcntl.F_SETFL, before | os.O_NONBLOCK)
        with refused(errno.EAGAIN):
            client.read()
        fcntl.fcntl(client, fcntl.F_SETFL, before)
        later = Later(client.read)
        with Raw(folder) as publisher:
            publisher.publish(channel, b"x")
        assert [message.data for message in later.result()] == [b"x"]


def test_another_clients_o_nonblock_is_its_own(folder: Path, name: str) -> None:
    [channel] = register(folder, name)
    with Raw(folder, os.O_NONBLOCK) as hasty, Raw(folder) as patient:
        for client in (hasty, patient):
            client.subscribe(name)
        later = Later(patient.read)
        with refused(errno.EAGAIN):
            hasty.read()
        assert not later.over()
        hasty.publish(channel, b"x")
        assert [message.data for message in later.result()] == [b"x"]


# poll, select, epoll


def test_poll_tells_exactly_when_a_message_matches(folder: Path, name: str) -> None:
    channel, other = register(folder, name + "A", name + "B")
    poll = select.poll()
    with Raw(folder) as client, Raw(folder) as publisher, Raw(folder) as witness:
        poll.register(client, select.POLLIN)
        witness.subscribe(name + ".")
        publisher.publish(channel, b"old")
        witness.wait(1)
        assert poll.poll(0) == []  # a message, but no subscription
        number = client.subscribe(name + "A")
        assert poll.poll(PATIENCE * 1000) == [(client.fd, select.POLLIN)]
        assert poll.poll(0) == [(client.fd, select.POLLIN)]  # it is still there
        client.read()
        assert poll.poll(0) == []
        publisher.publish(other, b"for others")
        witness.wait(1)
        assert poll.poll(0) == []
        publisher.publish(channel, b"1")
        publisher.publish(channel, b"2")
        witness.wait(2)
        assert poll.poll(0) == [(client.fd, select.POLLIN)]
        client.read(META.size + padded(1))
        assert poll.poll(0) == [(client.fd, select.POLLIN)]  # one is left
        client.unsubscribe(number)
        assert poll.poll(0) == []


@pytest.mark.parametrize("way", ["poll", "select", "epoll", "edge"])
def test_a_wait_ends_when_a_message_matches(folder: Path, name: str, way: str) -> None:
    channel, other = register(folder, name + "A", name + "B")
    with Raw(folder) as client, Raw(folder) as publisher, Raw(folder) as witness, contextlib.ExitStack() as stack:
        client.subscribe(name + "A")
        witness.subscribe(name + "B")
        wait = WAYS[way](client.fd, stack)
        for number in range(20):
            later = Later(wait)
            publisher.publish(other, b"for others")
            witness.wait(1)
            assert not later.over()
            publisher.publish(channel, b"%d" % number)
            assert later.result(), "woken without a reason"
            assert [message.data for message in client.read()] == [b"%d" % number]


def by_poll(fd: int, _stack: contextlib.ExitStack) -> Callable[[], object]:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return lambda: poll.poll(PATIENCE * 1000)


def by_select(fd: int, _stack: contextlib.ExitStack) -> Callable[[], object]:
    return lambda: select.select([fd], [], [], PATIENCE)[0]


def by_epoll(fd: int, stack: contextlib.ExitStack, flags: int = 0) -> Callable[[], object]:
    epoll = stack.enter_context(select.epoll())
    epoll.register(fd, select.EPOLLIN | flags)
    return lambda: epoll.poll(PATIENCE)


WAYS = {
    "poll": by_poll,
    "select": by_select,
    "epoll": by_epoll,
    "edge": lambda fd, stack: by_epoll(fd, stack, select.EPOLLET),
}


def test_a_subscription_wakes_who_polls(folder: Path, name: str) -> None:
    """What is kept matches from that moment on."""
    [channel] = register(folder, name)
    with Raw(folder) as client, Raw(folder) as publisher:
        publisher.publish(channel, b"old")
        later = Later(lambda: select.select([client.fd], [], [], PATIENCE)[0])
        client.subscribe(name)
        assert later.result()


def test_it_can_always_be_written(folder: Path) -> None:
    with Raw(folder) as client:
        assert select.select([], [client.fd], [], 0)[1] == [client.fd]
        poll = select.poll()
        poll.register(client, select.POLLOUT)
        assert poll.poll(0) == [(client.fd, select.POLLOUT)]


def test_one_epoll_of_many_clients(folder: Path, name: str) -> None:
    """Exactly those are told whose message came."""
    channels = register(folder, *(f"{name}{number}" for number in range(30)))
    with contextlib.ExitStack() as stack:
        epoll = stack.enter_context(select.epoll())
        clients = [stack.enter_context(Raw(folder)) for _ in channels]
        for number, client in enumerate(clients):
            client.subscribe(f"{name}{number}")
            epoll.register(client, select.EPOLLIN)
        publisher = stack.enter_context(Raw(folder))
        assert epoll.poll(0) == []
        chosen = {3, 7, 8, 29}
        for number in chosen:
            publisher.publish(channels[number], b"x")
        found: set[int] = set()
        while len(found) < len(chosen):
            events = epoll.poll(PATIENCE)
            assert events, "not all were told"
            found |= {fd for fd, _ in events}
        assert found == {clients[number].fd for number in chosen}


async def test_in_an_event_loop(folder: Path, name: str) -> None:
    """asyncio and uvloop take it for a socket: add_reader."""
    [channel] = register(folder, name)
    loop = asyncio.get_running_loop()
    got: asyncio.Queue[bytes] = asyncio.Queue()
    with Raw(folder, os.O_NONBLOCK) as client:
        client.subscribe(name)
        loop.add_reader(
            client.fd, lambda: [got.put_nowait(message.data) for message in parse(os.read(client.fd, 4096))]
        )
        for number in range(10):
            await loop.run_in_executor(None, client.publish, channel, b"%d" % number)
            async with asyncio.timeout(PATIENCE):
                assert await got.get() == b"%d" % number
        loop.remove_reader(client.fd)


# Readers that go.

READER = """
import os, struct, sys
folder, name, here = sys.argv[1:]
bus = os.open(folder + "/fusebus", os.O_RDWR)
os.write(bus, struct.pack("@Q", 0) + name.encode())
print("here", flush=True)
os.read(bus, 4096)
print("read", flush=True)
"""


def reader(folder: Path, name: str) -> subprocess.Popen:
    command = [sys.executable, "-I", "-S", "-c", READER, str(folder), name, ""]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert process.stdout.readline() == b"here\n"
    until(lambda: waits(process.pid), "it reads")
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_reader_that_vanishes_while_it_waits(folder: Path, name: str, number: int) -> None:
    """It is gone at once, and the bus goes on for the others."""
    [channel] = register(folder, name)
    process = reader(folder, name)
    process.send_signal(number)
    assert process.wait(PATIENCE) != 0
    process.stdout.close()
    with Raw(folder) as client:
        client.subscribe(name)
        client.publish(channel, b"and on")
        assert [message.data for message in client.wait(1)] == [b"and on"]


def test_what_a_vanished_reader_waited_for_is_not_lost(folder: Path, name: str) -> None:
    """Two processes share one open file; one waits in a read and is killed, the other one gets the message."""
    [channel] = register(folder, name)
    with Raw(folder) as client:
        client.subscribe(name)
        code = f"import os; print('here', flush=True); os.read({client.fd}, 4096)"
        command = [sys.executable, "-I", "-S", "-c", code]
        with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[client.fd]) as process:
            assert process.stdout.readline() == b"here\n"
            until(lambda: waits(process.pid), "it reads")
            process.kill()
            process.wait(PATIENCE)
        client.publish(channel, b"for the one who is left")
        assert [message.data for message in client.wait(1)] == [b"for the one who is left"]


def test_a_signal_ends_a_read_that_waits(folder: Path, name: str) -> None:
    """EINTR, as of any other file that is waited for."""
    code = """
import os, signal, struct, sys
class Woken(Exception): pass
def wake(*_): raise Woken
signal.signal(signal.SIGUSR1, wake)
bus = os.open(sys.argv[1] + "/fusebus", os.O_RDWR)
os.write(bus, struct.pack("@Q", 0) + sys.argv[2].encode())
print("here", flush=True)
try:
    os.read(bus, 4096)
except Woken:
    print("woken", flush=True)
print(len(os.read(bus, 4096)), flush=True)
"""
    [channel] = register(folder, name)
    command = [sys.executable, "-I", "-S", "-c", code, str(folder), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process, Raw(folder) as publisher:
        assert process.stdout.readline() == b"here\n"
        until(lambda: waits(process.pid), "it reads")
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == b"woken\n"
        publisher.publish(channel, b"12345")
        assert process.communicate(timeout=PATIENCE)[0] == b"56\n"


def test_a_closed_client_has_no_subscriptions(folder: Path, name: str) -> None:
    """Its number may be given to another one, its subscriptions are not."""
    [channel] = register(folder, name)
    with Raw(folder) as publisher:
        for number in range(30):
            with Raw(folder) as client:
                assert not client.ready()
                client.subscribe(name)
                publisher.publish(channel, b"%d" % number)
                assert len(client.wait(number + 1)) == number + 1
