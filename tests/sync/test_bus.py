"""The blocking face: the same names, threads, interrupts, fork."""

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import busway
import busway.sync
from busway.sync import bus as face
from busway.sync.base import Closable
from busway.sync.portal import Portal


class Answer(busway.Protocol):
    text: str


class Ask(busway.Protocol[Answer], prefix="ask"):
    name: str


@pytest.fixture
def server():
    with busway.sync.serve("tcp://127.0.0.1:0") as server:
        yield server
    assert Portal._shared is None  # everything was closed, so the thread is gone


@pytest.fixture
def bus(server):
    with busway.sync.connect(server.addresses[0], name="blocking") as bus:
        yield bus


def test_publish_and_subscribe(bus):
    with bus.subscribe("price/*/eur", limit=10) as prices:
        assert bus.publish("price/eth/eur", "1", confirm=True) == 1
        assert bus.publish("price/eth/usd", "1", confirm=True) == 0
        assert bus.publish("price/eth/eur", b"2") is None
        assert bus.publish_many("price/btc/eur", (str(number) for number in (3, 4))) == 2
        assert bus.publish_many([("price/x/eur", "5"), ("price/y/eur", "6")]) == 2
        bus.flush()
        assert prices.pending == 6
        assert prices.recv().text == "1"
        assert [message.text for message in prices.take(2)] == ["2", "3"]
        assert next(iter(prices)).text == "4"
        assert prices.recv(timeout=60).text == "5"
        assert [message.text for message in next(prices.batches())] == ["6"]
        with pytest.raises(busway.Timeout):
            prices.recv(timeout=0.01)
        assert (prices.pattern, prices.group, prices.missed, prices.received) == ("price/*/eur", "", 0, 6)
    assert prices.closed
    with pytest.raises(busway.Closed):
        prices.recv(timeout=1)
    assert list(prices) == []


def test_iteration_that_is_left_loses_nothing(bus):
    with bus.subscribe("numbers") as numbers:
        bus.publish_many("numbers", [str(number) for number in range(10)])
        bus.flush()
        seen = []
        for _ in range(5):
            for message in numbers:
                seen.append(message.text)
                if len(seen) % 2 == 0:
                    break
        assert seen == [str(number) for number in range(10)]


def test_requests_in_threads(bus):
    together = threading.Barrier(3, timeout=60)

    def meet(message):
        together.wait()  # passes only if three handlers run at the same time
        return {"thread": threading.current_thread() is not threading.main_thread(), "said": message.text}

    with bus.serve("meet", meet, concurrency=3), ThreadPoolExecutor(3) as pool:
        replies = list(pool.map(lambda said: bus.request("meet", said, timeout=60).json(), ["a", "b", "c"]))
    assert replies == [{"thread": True, "said": said} for said in "abc"]
    with pytest.raises(busway.NoResponders):
        bus.request("meet")


def test_shared_services_and_many_replies(server, bus):
    with busway.sync.connect(server.addresses[0], name="other") as other:
        asked = []

        def ask(message):
            asked.append(other.info()["name"])  # may block, and use the bus
            return message.text != "no"

        def several(message):
            yield "1"
            yield other.request("$bus/info").topic

        async def one(message):
            yield "loop"

        with (
            bus.serve("s", several, shared=True, ask=ask),
            other.serve("s", one, shared=True, ask=lambda message: True),
        ):
            replies = bus.request_all("s", timeout=60, each=20)
            assert sorted(reply.text for reply in replies) == ["$bus/info", "1", "loop"]
            assert replies.failed == []
            with bus.request_many("s", "no", timeout=60, each=20) as many:
                assert [reply.text for reply in many] == ["loop"]
            for reply in bus.request_many("s", timeout=60, each=20):
                assert reply.kind == "reply"
                break
            assert bus.request("s", "no", each=20).text == "loop"
        assert asked
        with bus.serve("parts") as parts, ThreadPoolExecutor(1) as pool:
            asking = pool.submit(other.request_all, "parts", timeout=60)
            request = parts.recv(timeout=60)
            request.reply(b"1", last=False)
            request.reply(b"2")
            assert [reply.payload for reply in asking.result(20)] == [b"1", b"2"]
        with pytest.raises(busway.NoResponders):
            bus.request_all("s")
        with pytest.raises(ValueError, match="shared=True"):
            bus.serve("s", several, ask=ask)
        with pytest.raises(TypeError, match="ask must be a function"):
            bus.serve("s", several, shared=True, ask=7)


def test_a_handler_may_use_the_bus(bus):
    def double(message):
        return bus.request("one", message.payload, timeout=10).json() * 2

    with bus.serve("one", lambda message: message.json()), bus.serve("two", double):
        assert bus.request("two", 21, timeout=10).json() == 42

    done = threading.Event()
    with bus.subscribe("in", handler=lambda message: (bus.publish("out", message.payload), done.set())):
        with bus.subscribe("out") as out:
            bus.publish("in", b"x")
            assert out.recv(timeout=60).payload == b"x"
    assert done.is_set()


def test_a_coroutine_function_runs_on_the_loop(bus):
    async def answer(message):
        await asyncio.sleep(0)
        return threading.current_thread().name

    with bus.serve("where", answer):
        assert bus.request("where").text == "busway-sync"


def test_errors_of_handlers(bus, server):
    with bus.serve("fail", lambda message: 1 / 0), pytest.raises(busway.HandlerError, match="division by zero"):
        bus.request("fail")
    told: list[BaseException] = []
    seen = threading.Event()

    def hook(error):
        told.append(error)
        with pytest.raises(RuntimeError, match="own thread"):
            other.publish("x")
        seen.set()

    with server.connect(on_error=hook) as other, other.subscribe("x", handler=lambda message: 1 / 0):
        other.publish("x")
        assert seen.wait(10)
    assert isinstance(told[0], ZeroDivisionError)


def test_requests_by_hand(bus):
    with bus.serve("hand") as service, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(bus.request, "hand", "hello")
        request = service.recv(timeout=60)
        assert (request.topic, request.text, request.payload) == ("hand", "hello", b"hello")
        request.reply(["yes"])
        assert asking.result().json() == ["yes"]

        asking = pool.submit(bus.request, "hand", "1")
        for request in service:
            assert request.json() == 1
            request.fail("no")
            break
        with pytest.raises(busway.HandlerError, match="no"):
            asking.result()
    assert list(service) == []


def test_typed(bus):
    with bus.serve(Ask, "", lambda ask: Answer(text=f"Hello {ask.name}")):
        assert bus.request("", Ask(name="Alice")) == Answer(text="Hello Alice")
    with bus.serve(Ask, "", lambda ask: Answer(text=ask.name), shared=True, ask=lambda ask: ask.name != "no"):
        assert [value.text for _, value in bus.request_many("", Ask(name="x"))] == ["x"]
        with pytest.raises(busway.NoResponders):
            bus.request_all("", Ask(name="no"))
    with bus.serve(Ask, "hand") as service, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(bus.request, "hand", Ask(name="Bob"))
        request = service.recv(timeout=60)
        assert (request.value.name, request.topic) == ("Bob", "ask/hand")
        request.reply(Answer(text="by hand"))
        assert asking.result().text == "by hand"
    with bus.subscribe(Ask, "**") as asks:
        bus.publish("x", Ask(name="1"))
        bus.publish("ask/x", b"bad")
        bus.publish("x", Ask(name="2"))
        assert asks.recv(timeout=60) == ("ask/x", Ask(name="1"))
        with pytest.raises(busway.PayloadError):
            asks.recv(timeout=60)
        assert asks.recv(timeout=60).value.name == "2"


def test_events(server):
    bus = server.connect()
    events = bus.events()
    bus.close()
    assert [event.kind for event in events][-1:] == ["closed"]
    assert events.dropped == 0
    with pytest.raises(busway.Closed):
        bus.publish("x")
    bus.close()  # again: nothing happens


def test_closing_the_bus_ends_a_waiting_thread(server):
    bus = server.connect()
    subscription = bus.subscribe("x")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(list, subscription)
        bus.publish("x")
        while subscription.received == 0 or subscription.pending:
            bus.flush()
        bus.close()
        assert len(waiting.result(timeout=60)) == 1


def test_a_bus_is_open_from_its_creation(bus, server):
    assert bus.open() is bus
    assert (bus.state, bus.closed, bus.name, bus.url) == ("connected", False, "blocking", server.addresses[0])
    assert server.stats()["connections"] == 1
    assert repr(bus).startswith("<sync <Bus 'blocking' connected")


def test_nobody_there():
    with pytest.raises(busway.ConnectFailed):
        busway.sync.connect("tcp://127.0.0.1:1", timeout=2)
    with pytest.raises(busway.ListenFailed):
        busway.sync.serve("tcp://192.0.2.1:1")
    assert Portal._shared is None


async def test_inside_a_running_loop():
    with busway.sync.serve() as server, server.connect() as bus, bus.subscribe("x") as subscription:
        bus.publish("x", b"1")
        assert subscription.recv(timeout=60).payload == b"1"


def test_many_threads_share_a_bus(bus):
    with bus.subscribe("n") as numbers, ThreadPoolExecutor(8) as pool:
        for _ in pool.map(lambda number: bus.publish("n", str(number)), range(200)):
            pass
        bus.flush()
        found = list(pool.map(lambda _: numbers.recv(timeout=60).text, range(200)))
    assert sorted(found, key=int) == [str(number) for number in range(200)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork(bus, server):
    subscription = bus.subscribe("x")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # nothing of pytest may run in here
        try:
            found = []
            for call in (lambda: bus.publish("x"), lambda: subscription.recv(timeout=1), bus.info):
                try:
                    call()
                except busway.Forked:
                    found.append("forked")
            bus.close()
            with busway.sync.connect(server.addresses[0]) as fresh:
                fresh.publish("x", "from the child")
            os.write(writer, " ".join(found).encode())
        finally:
            os._exit(0)
    os.close(writer)
    try:
        assert subscription.recv(timeout=60).text == "from the child"
        assert os.read(reader, 100) == b"forked forked forked"
    finally:
        os.close(reader)
        os.waitpid(child, 0)
    subscription.close()


INTERRUPTED = """
import asyncio, os, signal
import busway.sync
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start what is in the background without it
with busway.sync.serve() as server, server.connect() as bus, bus.subscribe("x") as subscription:
    take = subscription._inner.take
    async def interrupting(*arguments):
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        return await take(*arguments)
    subscription._inner.take = interrupting
    try:
        subscription.recv()
    except KeyboardInterrupt:
        print("interrupted")
    subscription._inner.take = take
    bus.publish("x", "after")
    print(subscription.recv(timeout=60).text)
"""

LEFT_OPEN = """
import sys
import busway.sync
bus = busway.sync.connect(sys.argv[1])
bus.publish_many("left", [str(number) for number in range(1000)])
"""


def test_interrupt_ends_the_wait_and_nothing_else():
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=40, check=False
    )
    assert (result.stdout, result.stderr, result.returncode) == ("interrupted\nafter\n", "", 0)


def test_an_interrupt_before_the_wait_ends_what_was_begun(bus, monkeypatch):
    """What it began must not take the message of the next call."""
    begin = asyncio.run_coroutine_threadsafe

    def interrupted(*arguments):
        begin(*arguments)
        raise KeyboardInterrupt

    with bus.subscribe("x") as subscription:
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
            with pytest.raises(KeyboardInterrupt):
                subscription.recv()
        bus.publish("x", "after")
        assert subscription.recv(timeout=60).text == "after"


def test_what_a_script_published_goes_out_at_its_end(bus, server):
    with bus.subscribe("left") as left:
        subprocess.run([sys.executable, "-c", LEFT_OPEN, server.addresses[0]], check=True, timeout=40)
        assert sum(len(batch) for batch in (left.take(timeout=10),)) > 0
        while left.received < 1000:
            left.take(timeout=10)
    assert left.received == 1000


def test_everything_closed_at_exit_is_only_what_is_open(server):
    bus = server.connect()
    assert bus in face._open
    bus.close()
    assert bus not in face._open


def test_what_is_closed_by_with_must_say_how():
    with pytest.raises(TypeError, match="abstract"):
        Closable()


def test_streams(bus):
    stream = bus.create_stream("orders", ["orders/**"])
    placed = bus.publish_many("orders/eu", [b"%d" % number for number in range(3000)], durable=True)
    sizes = [len(batch) for batch in stream.read()]
    assert (sum(sizes), max(sizes)) == (3000, 1024)
    assert [message.payload for batch in stream.read(placed[1], 3, topic="orders/*") for message in batch] == [
        b"1",
        b"2",
    ]
    assert sum(batch.num_rows for batch in stream.arrow(columns=["offset"])) == 3000
    with pytest.raises(ValueError, match="batch"):
        stream.read(batch=0)  # at the call, before the first item
    assert isinstance(bus.stream("orders"), busway.sync.Stream)
    bus.remove_stream("orders")
    with pytest.raises(busway.Rejected, match="no stream"):
        stream.info()


def test_leaving_an_iteration_ends_the_async_generator(bus):
    made, ended = [], []

    async def items():
        try:
            yield 1
            yield 2
        finally:
            ended.append(threading.current_thread().name)

    def make():
        made.append(items())
        return made[0]

    for item in bus._portal.each(make):
        assert item == 1
        break
    assert ended == ["busway-sync"]


def test_iterators_of_the_caller_run_in_its_thread(bus):
    """They may block, or use the bus."""
    ran_in = []

    def items(*values):
        ran_in.append(threading.current_thread())
        yield from values

    bus.create_stream("s", items("t"))
    bus.publish_many("t", items(b"1", b"2"), durable=True)
    bus.publish_many(items(("t", b"3")))
    with bus.channel("s", "c", start="first") as channel:
        channel.reject(items(*channel.take(2, timeout=60, whole=True)), "no")
        letters = channel.dead()
        assert channel.redrive(items(*letters)).redriven == 2
    assert ran_in == [threading.main_thread()] * 5


def test_a_position_counts_what_was_handed_out_only(bus):
    bus.publish_many("t", [b"%d" % number for number in range(10)], durable=True)
    with bus.subscribe("t", since="all") as subscription:
        assert subscription.recv(timeout=60).payload == b"0"
        first = next(iter(subscription))  # fetches more than it hands out
        assert first.payload == b"1"
        position = subscription.position
    with bus.subscribe("t", since=position) as subscription:
        assert subscription.recv(timeout=60).payload == b"2"
