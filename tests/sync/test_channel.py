"""Channels of the blocking face: the same promises, from any thread."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import busway
import busway.sync
from tests.support.net import PATIENCE


@pytest.fixture
def server() -> Iterator[busway.sync.Server]:
    with busway.sync.serve() as server:
        yield server


@pytest.fixture
def bus(server: busway.sync.Server) -> Iterator[busway.sync.Bus]:
    with server.connect(name="maker") as bus:
        bus.create_stream("s", ["t/**"])
        yield bus


def store(bus: busway.sync.Bus, begin: int, end: int) -> None:
    bus.publish_many("t/a", [b"%d" % number for number in range(begin, end)], durable=True)


def numbers(messages: list[busway.Message]) -> list[int]:
    return [int(message.payload) for message in messages]


def info(bus: busway.sync.Bus) -> busway.ChannelInfo:
    (found,) = bus.channels("s")
    return found


@pytest.mark.parametrize("window", [0, 1, 20])
def test_receive_and_acknowledge(bus: busway.sync.Bus, window: int) -> None:
    store(bus, 0, 30)
    seen: list[int] = []
    with bus.channel("s", "c", window=window) as channel:
        assert (channel.stream, channel.name, channel.window, channel.lost) == ("s", "c", window, 0)
        for message in channel:
            seen.append(int(message.payload))
            assert message.channel is channel
            message.ack()
            if len(seen) == 10:
                break
        message = channel.recv(timeout=PATIENCE)
        seen.append(int(message.payload))
        message.ack()
        for batch in channel.batches(4):
            seen += numbers(batch)
            channel.ack(batch)
            if len(seen) == 30:
                break
        with pytest.raises(busway.Timeout):
            channel.recv(timeout=0.01)
        with pytest.raises(busway.Timeout):
            channel.take(timeout=0)
    assert seen == list(range(30))
    assert (info(bus).floor, info(bus).consumers) == (30, 0)


@pytest.mark.parametrize("window", [0, 10])
def test_take_whole(bus: busway.sync.Bus, window: int) -> None:
    store(bus, 0, 3)
    with bus.channel("s", "c", window=window) as channel, ThreadPoolExecutor(1) as pool:
        taking = pool.submit(channel.take, 5, PATIENCE, whole=True)
        while channel.info().in_flight != 3:
            pass
        store(bus, 3, 5)
        assert numbers(taking.result(PATIENCE)) == [0, 1, 2, 3, 4]
        assert (channel.seek("first"), bus.seek_channel("s", "c", 2)) == (0, 2)


def test_nack_extend_and_being_late(bus: busway.sync.Bus) -> None:
    store(bus, 0, 2)
    with bus.channel("s", "c", max_deliveries=2) as channel, bus.subscribe("dead/**") as dead:
        first, second = channel.take(2, timeout=PATIENCE, whole=True)
        first.nack()
        again = channel.recv(timeout=PATIENCE)
        assert (again.offset, again.deliveries) == (0, 2)
        channel.extend([again, second])
        channel.nack(again, delay=0)
        assert dead.recv(timeout=PATIENCE).payload == b"0"
        second.ack()
        with pytest.raises(busway.AckLate):
            second.ack()
        with pytest.raises(busway.Rejected, match="did not deliver this message"), bus.channel("s", "d") as other:
            other.ack(first)
    with pytest.raises(busway.Closed):
        second.ack()


def test_threads_share_a_channel(bus: busway.sync.Bus) -> None:
    store(bus, 0, 400)
    seen: Counter[int] = Counter()

    def work(channel: busway.sync.Channel) -> None:
        while sum(seen.values()) < 400:
            try:
                message = channel.recv(timeout=0.05)
            except busway.Timeout:
                continue
            seen[int(message.payload)] += 1
            message.ack()

    with bus.channel("s", "c", window=16) as channel, ThreadPoolExecutor(4) as pool:
        for one in [pool.submit(work, channel) for _ in range(4)]:
            one.result(PATIENCE)
        assert channel.info().floor == 400
    assert seen == Counter(range(400))


def test_a_handler_in_threads(bus: busway.sync.Bus) -> None:
    store(bus, 0, 20)
    seen: Counter[int] = Counter()
    done = threading.Event()

    def handle(message: busway.Message) -> None:
        seen[int(message.payload)] += 1
        if message.payload == b"3" and message.deliveries == 1:
            raise ValueError("not now")
        if message.payload == b"4":
            message.ack()  # by itself
        if sum(seen.values()) == 21:
            done.set()

    with bus.channel("s", "c", handler=handle, concurrency=3):
        assert done.wait(PATIENCE)
    assert seen == Counter([*range(20), 3])
    assert (info(bus).floor, info(bus).late, bus.errors) == (20, 0, 1)


def test_closing_gives_back_what_nobody_looked_at(bus: busway.sync.Bus) -> None:
    store(bus, 0, 5)
    with bus.channel("s", "c", window=5) as channel:
        assert channel.recv(timeout=PATIENCE).offset == 0
        while channel.pending < 4:
            pass
        assert channel.take(1)[0].offset == 1  # the others were fetched with it, and are held here
    with bus.channel("s", "c", window=5) as channel:
        got = channel.take(5, timeout=PATIENCE, whole=True)
        assert [(message.offset, message.deliveries) for message in got] == [(0, 2), (1, 2), (2, 1), (3, 1), (4, 1)]


def test_a_lost_connection_drops_what_was_fetched(server: busway.sync.Server, bus: busway.sync.Bus) -> None:
    store(bus, 0, 5)
    with server.connect(reconnect=(0,)) as lost, lost.channel("s", "c", window=5) as channel:
        events = lost.events()
        while channel.pending < 5:
            pass
        channel.recv(timeout=PATIENCE).ack()
        loop, connection = lost._portal._loop, lost._inner._core.connection
        assert loop is not None
        assert connection is not None
        loop.call_soon_threadsafe(connection.transport.abort)
        assert next(event for event in events if event.kind == "resumed")
        got = channel.take(4, timeout=PATIENCE, whole=True)
        assert [(message.offset, message.deliveries) for message in got] == [(1, 2), (2, 2), (3, 2), (4, 2)]
        channel.ack(got)
    assert info(bus).floor == 5


def test_in_the_loops_own_thread_it_is_refused(bus: busway.sync.Bus) -> None:
    """An asynchronous handler of the blocking face must not block the loop that it runs in."""
    store(bus, 0, 1)
    told = threading.Event()
    errors: list[BaseException] = []

    async def handle(message: busway.Message) -> None:
        try:
            message.ack()
        except RuntimeError as error:
            errors.append(error)
        told.set()

    with bus.channel("s", "c", handler=handle):
        assert told.wait(PATIENCE)
    assert "own thread" in str(errors[0])
    assert info(bus).floor == 1  # by returning it is acknowledged all the same
