"""Reconnects: events, delays, several servers, restarts, and messages published meanwhile."""

import asyncio
import signal
import sys
from typing import Any

import msgspec
import pytest

import busway
from busway.positions import encode_since, since_again
from busway.settings import Identity
from busway.testing import FaultProxy
from tests.support.connection_events import lose, next_event, restore
from tests.support.net import PATIENCE, Net, eventually, gather, payloads, settle, until, within


async def kinds_until(events: busway.EventStream, last: str) -> list[str]:
    kinds: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while not kinds or kinds[-1] != last:
            kinds.append((await anext(events)).kind)
    return kinds


async def test_the_order_of_events(net: Net) -> None:
    server = await net.serve()
    async with FaultProxy(server.addresses[0]) as proxy:
        bus = busway.connect(proxy.address, reconnect=(0,))
        assert bus.state == "connecting"
        events = bus.events()
        await bus
        assert bus.state == "connected"
        for _ in range(3):
            proxy.refusing = True
            proxy.cut()
            lost = await next_event(events, "lost") if _ else None
            if lost is None:
                assert await kinds_until(events, "lost") == ["connected", "lost"]
            assert bus.state == "lost"
            resumed = await restore(proxy, events)
            assert bus.state == "connected"
            assert resumed.attempts >= 1
            assert resumed.downtime >= 0
            assert resumed.url == proxy.address
        await bus.close()
        assert await kinds_until(events, "closed") == ["closed"]
        with pytest.raises(StopAsyncIteration):
            await anext(events)


async def test_subscriptions_and_services_are_restored_before_resumed_is_told(net: Net) -> None:
    server = await net.serve()
    witness = await net.connect()
    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, reconnect=(0,)) as bus:
        events = bus.events()
        async with (
            bus.subscribe("a/*") as plain,
            bus.subscribe("re:b/.*", group="g", policy="drop_new", echo=False) as special,
            bus.serve("s", lambda message: b"served"),
            bus.serve("i") as iterated,
        ):
            session = bus.server["client"]
            proxy.reset()
            await next_event(events, "resumed")
            assert bus.server["client"] != session
            assert await witness.publish("a/1", b"x", confirm=True) == 1
            assert await witness.publish("b/1", b"y", confirm=True) == 1
            await bus.publish("b/1", b"own")  # echo=False was restored too
            assert await payloads(plain, 1) == [b"x"]
            assert await payloads(special, 1) == [b"y"]
            await settle(bus)
            assert special.pending == 0
            assert (await witness.request("s")).payload == b"served"
            asking = asyncio.ensure_future(witness.request("i", timeout=PATIENCE))
            await (await iterated.recv(timeout=PATIENCE)).reply(b"yes")
            assert (await asking).payload == b"yes"


async def test_a_subscription_outlives_the_loss_with_what_had_arrived(net: Net) -> None:
    server = await net.serve()
    witness = await net.connect()
    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, reconnect=(0,)) as bus:
        events = bus.events()
        async with bus.subscribe("t") as subscription:
            await witness.publish("t", b"before")
            await settle(witness, bus)
            waiting = asyncio.ensure_future(gather(subscription, 2))
            proxy.cut()
            await next_event(events, "resumed")
            await witness.publish("t", b"after")
            assert [message.payload for message in await within(waiting)] == [b"before", b"after"]


async def test_a_service_that_was_taken_meanwhile_has_visibly_failed(net: Net) -> None:
    server = await net.serve()
    rival = await net.connect()
    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, reconnect=(0,)) as bus:
        events = bus.events()
        service = await bus.serve("s", lambda message: b"old")
        iterated = await bus.serve("i")
        receiving = asyncio.ensure_future(iterated.recv())
        await lose(proxy, events)

        async def claimed() -> bool:
            try:
                await rival.serve("s", lambda message: b"new")
                await rival.serve("i", lambda message: b"new")
            except busway.ServiceTaken:
                return False
            return True

        await eventually(claimed)
        proxy.refusing = False
        rejected = await next_event(events, "rejected")
        assert rejected.topic in {"s", "i"}
        assert isinstance(rejected.error, busway.ServiceTaken)
        await next_event(events, "resumed")
        assert service.closed
        with pytest.raises(busway.ServiceTaken):
            await within(receiving)
        assert (await bus.request("s")).payload == b"new"


async def test_a_subscription_beyond_the_new_server_s_limit_has_visibly_failed() -> None:
    async with busway.serve("tcp://127.0.0.1:0") as first, FaultProxy(first.addresses[0]) as proxy:
        small = busway.Settings(subscriptions=1)
        async with (
            busway.serve("tcp://127.0.0.1:0", settings=small) as second,
            busway.connect(proxy.address, reconnect=(0,)) as bus,
        ):
            events = bus.events()
            subscriptions = [await bus.subscribe("t"), await bus.subscribe("t")]
            proxy.upstream = second.addresses[0]
            proxy.cut()
            assert isinstance((await next_event(events, "rejected")).error, busway.LimitExceeded)
            await next_event(events, "resumed")
            await bus.publish("t", b"x")
            outcomes: list[Any] = []
            for subscription in subscriptions:
                try:
                    outcomes.append((await subscription.recv(timeout=PATIENCE)).payload)
                except busway.LimitExceeded as error:
                    outcomes.append(error.code)
            assert sorted(map(str, outcomes)) == ["30", "b'x'"]


async def test_offline_fail_is_at_once(net: Net) -> None:
    server = await net.serve()
    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, reconnect=(0,)) as bus:
        events = bus.events()
        await lose(proxy, events)
        for call in (
            lambda: bus.publish("t", b""),
            lambda: bus.publish("t", b"", confirm=True),
            lambda: bus.publish_many("t", [b""]),
            lambda: bus.push("t"),
            lambda: bus.request("t", timeout=None),
            lambda: bus.subscribe("t"),
            lambda: bus.serve("t", lambda message: b""),
            bus.flush,
        ):
            with pytest.raises(busway.Disconnected):
                await within(call())
        await restore(proxy, events)
        assert await bus.publish("t", b"", confirm=True) == 0


@pytest.mark.parametrize("where", ["connect", "publish"])
async def test_offline_buffer_keeps_the_order(net: Net, where: str) -> None:
    server = await net.serve()
    witness = await net.connect()
    buffer = busway.Buffer(bytes=1 << 20, age=60)
    options: dict[str, Any] = {"offline": buffer} if where == "connect" else {}
    each: dict[str, Any] = {} if where == "connect" else {"offline": buffer}
    async with (
        FaultProxy(server.addresses[0]) as proxy,
        busway.connect(proxy.address, reconnect=(0,), **options) as bus,
        witness.subscribe("t/*") as subscription,
    ):
        events = bus.events()
        await bus.publish("t/1", b"0", **each)
        await bus.flush()
        await lose(proxy, events)
        for number in range(1, 50):
            await bus.publish(f"t/{number % 3}", str(number), **each)
        await restore(proxy, events)
        await bus.publish("t/1", b"50", **each)
        assert await payloads(subscription, 51) == [b"%d" % number for number in range(51)]


async def test_offline_buffer_is_bounded(net: Net) -> None:
    server = await net.serve()
    witness = await net.connect()
    async with (
        FaultProxy(server.addresses[0]) as proxy,
        busway.connect(proxy.address, reconnect=(0,), offline=busway.Buffer(bytes=100, age=60)) as bus,
        witness.subscribe("t") as subscription,
    ):
        events = bus.events()
        await lose(proxy, events)
        kept = 0
        with pytest.raises(busway.LimitExceeded):
            for _ in range(100):
                await bus.publish("t", b"x" * 9)
                kept += 1
        assert kept == 10
        with pytest.raises(busway.Disconnected):
            await bus.publish("t", b"", offline="fail")
        await restore(proxy, events)
        assert await payloads(subscription, kept) == [b"x" * 9] * kept


async def test_buffered_messages_that_grew_too_old_are_told(net: Net) -> None:
    server = await net.serve()
    witness = await net.connect()
    async with (
        FaultProxy(server.addresses[0]) as proxy,
        busway.connect(proxy.address, reconnect=(0, 0.001)) as bus,
        witness.subscribe("t") as subscription,
    ):
        events = bus.events()
        await lose(proxy, events)
        await bus.publish("t", b"old", offline=busway.Buffer(bytes=1000, age=1e-9))
        await bus.publish("t", b"fresh", offline=busway.Buffer(bytes=1000, age=60))
        refused = proxy.refused
        await until(lambda: proxy.refused > refused)
        proxy.refusing = False
        told = await next_event(events, "error")
        assert told.count == 1
        assert await payloads(subscription, 1) == [b"fresh"]


async def test_the_schedule_is_followed_and_its_last_delay_repeats(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await net.serve()
    delays: list[float] = []
    real = asyncio.sleep

    async def sleep(delay: float, result: Any = None) -> Any:
        if delay in (0.00123, 0.00234, 0.00345):
            delays.append(delay)
            delay = 0
        return await real(delay, result)

    async with (
        FaultProxy(server.addresses[0]) as proxy,
        busway.connect(proxy.address, reconnect=(0.00123, 0.00234, 0.00345), jitter=0) as bus,
    ):
        events = bus.events()
        monkeypatch.setattr(asyncio, "sleep", sleep)
        proxy.refusing = True
        proxy.cut()
        await until(lambda: proxy.refused >= 5)
        resumed = await restore(proxy, events)
        monkeypatch.undo()
    assert resumed.attempts == len(delays) >= 6
    assert delays == [0.00123, 0.00234] + [0.00345] * (len(delays) - 2)


@pytest.mark.parametrize("never", [None, ()])
async def test_without_a_schedule_the_loss_is_the_end(net: Net, never: Any) -> None:
    server = await net.serve()
    async with FaultProxy(server.addresses[0]) as proxy:
        bus = await busway.connect(proxy.address, reconnect=never)
        events = bus.events()
        subscription = await bus.subscribe("t")
        receiving = asyncio.ensure_future(subscription.recv())
        asking = asyncio.ensure_future(bus.request("$bus/info", timeout=PATIENCE))
        proxy.reset()
        assert await kinds_until(events, "closed") == ["lost", "closed"]
        assert bus.state == "closed"
        with pytest.raises(busway.BusError):
            await within(receiving)
        await asyncio.gather(asking, return_exceptions=True)
        with pytest.raises(busway.Closed):
            await bus.publish("t", b"")
        await bus.close()


async def test_first_connect_fails_clearly_and_in_time() -> None:
    with pytest.raises(busway.ConnectFailed, match=r"127\.0\.0\.1:1"):
        await within(busway.connect("tcp://127.0.0.1:1", timeout=2).__aenter__())


async def test_a_server_that_never_answers_the_hello() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(busway.ConnectFailed):
            await within(busway.connect(f"tcp://127.0.0.1:{port}", timeout=0.05).__aenter__())


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x02\0\0\0\x7f\0", b"\0" * 100, b"\xff" * 100]
)
async def test_a_server_of_another_kind(answer: bytes) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        await writer.drain()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(other, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(busway.BusError) as caught:
            await within(busway.connect(f"tcp://127.0.0.1:{port}", timeout=2).__aenter__())
        assert not isinstance(caught.value, busway.Timeout)


async def test_several_urls_are_tried_in_order() -> None:
    async with busway.serve("tcp://127.0.0.1:0") as first, busway.serve("tcp://127.0.0.1:0") as second:
        one, two = first.addresses[0], second.addresses[0]
        async with busway.connect("tcp://127.0.0.1:1", one, two) as bus:
            assert bus.url == one
        async with busway.connect(two, one, reconnect=(0,)) as bus:
            assert bus.url == two
            events = bus.events()
            async with bus.subscribe("t") as subscription:
                await second.stop()
                resumed = await next_event(events, "resumed")
                assert (resumed.url, bus.url) == (one, one)
                assert bus.server["guid"] == first.guid
                await bus.publish("t", b"moved")
                assert await payloads(subscription, 1) == [b"moved"]


async def test_the_servers_that_the_broker_told_are_tried_too() -> None:
    async with busway.serve("tcp://127.0.0.1:0") as spare:
        settings = busway.Settings(servers=(spare.addresses[0],))
        async with (
            busway.serve("tcp://127.0.0.1:0", settings=settings) as first,
            busway.connect(first.addresses[0], reconnect=(0,)) as bus,
        ):
            events = bus.events()
            await first.stop()
            assert (await next_event(events, "resumed")).url == spare.addresses[0]


async def test_the_url_may_come_from_the_environment(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await net.serve()
    monkeypatch.setenv("BUSWAY_URL", server.addresses[0])
    async with busway.connect() as bus:
        assert bus.url == server.addresses[0]


@pytest.mark.parametrize(
    "url", ["", "nonsense", "http://x", "tcp:127.0.0.1:1", "unix:", "tcp://h:99999", "tcp://h:1/path"]
)
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match=r"address|path"):
        busway.connect(url)


async def test_a_restart_of_the_server(net: Net) -> None:
    first = await busway.serve("tcp://127.0.0.1:0").start()
    address = first.addresses[0]
    async with busway.connect(address, reconnect=(0, 0.005)) as bus:
        events = bus.events()
        async with bus.subscribe("t") as subscription, bus.serve("s", lambda message: b"yes"):
            for _ in range(3):
                await first.stop()
                await next_event(events, "lost")
                first = await busway.serve(address).start()
                await next_event(events, "resumed")
                assert bus.server["guid"] == first.guid
                await bus.publish("t", b"x")
                assert await payloads(subscription, 1) == [b"x"]
                assert (await bus.request("s")).payload == b"yes"
    await first.stop()


PROGRAM = """
import asyncio, sys, busway

async def main():
    async with busway.serve(sys.argv[1]) as server:
        print(server.addresses[0], flush=True)
        await server.serve_forever()

asyncio.run(main())
"""


async def broker(address: str) -> tuple[asyncio.subprocess.Process, str]:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, address, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    return child, (await within(child.stdout.readline())).decode().strip()


async def test_a_broker_killed_and_started_again_on_the_same_port() -> None:
    child, address = await broker("tcp://127.0.0.1:0")
    async with (
        busway.connect(address, reconnect=(0, 0.005)) as bus,
        busway.connect(address, reconnect=(0, 0.005)) as other,
    ):
        events, others = bus.events(), other.events()
        async with bus.subscribe("t") as subscription, bus.serve("s", lambda message: b"yes"):
            for _ in range(2):
                child.send_signal(signal.SIGKILL)
                await within(child.wait())
                await next_event(events, "lost")
                child, again = await broker(address)
                assert again == address
                await next_event(events, "resumed")
                await next_event(others, "resumed")
                assert await other.publish("t", b"x", confirm=True) == 1
                assert await payloads(subscription, 1) == [b"x"]
                assert (await other.request("s")).payload == b"yes"
    child.send_signal(signal.SIGKILL)
    await within(child.wait())


async def test_a_session_that_is_taken_does_not_fight_back(net: Net) -> None:
    """Two clients with one session would throw each other out for ever; the older one gives in."""
    from tests.support import wire

    server = await net.serve()
    bus = await net.connect("first", identity=Identity(secret=wire.secret(7)))
    async with bus.subscribe("t") as subscription:
        events = bus.events()
        receiving = asyncio.ensure_future(subscription.recv())
        async with await wire.RawClient.welcomed(server.addresses[0], 7, "second") as raw:
            assert await kinds_until(events, "closed") == ["lost", "closed"]
            with pytest.raises(busway.BusError):
                await within(receiving)
            await raw.send(wire.ping(1))
            assert await raw.expect(wire.PONG) == 1


async def test_closing_while_it_is_lost(net: Net) -> None:
    server = await net.serve()
    async with FaultProxy(server.addresses[0]) as proxy:
        bus = await busway.connect(proxy.address, reconnect=(0, 0.001))
        events = bus.events()
        subscription = await bus.subscribe("t")
        receiving = asyncio.ensure_future(subscription.recv())
        await lose(proxy, events)
        await within(bus.close())
        assert bus.state == "closed"
        with pytest.raises(busway.Closed):
            await within(receiving)


async def test_numbers_go_on_over_reconnects(net: Net) -> None:
    """Session and number make the id of a message; no id comes twice."""
    server = await net.serve()
    witness = await net.connect()
    ids: set[str] = set()
    async with (
        FaultProxy(server.addresses[0]) as proxy,
        busway.connect(proxy.address, reconnect=(0,)) as bus,
        witness.subscribe("t") as subscription,
    ):
        events = bus.events()
        for _ in range(5):
            await bus.publish_many("t", [b""] * 10)
            ids |= {message.id for message in await gather(subscription, 10)}
            proxy.cut()
            await next_event(events, "resumed")
    assert len(ids) == 50
    assert len({each[:16] for each in ids}) == 1


async def test_what_never_left_is_told_with_the_loss(net: Net) -> None:
    """The transport's own buffer counts: what it took was not sent by that."""
    server = await net.serve()
    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, reconnect=(0,)) as bus:
        events = bus.events()
        (await proxy.link()).stall("up")
        sending = asyncio.ensure_future(bus.publish_many("t", [bytes(1 << 20)] * 64))
        connection = bus._core.connection
        assert connection is not None
        await until(lambda: connection.paused)
        waiting = connection.transport.get_write_buffer_size()
        assert waiting > 0
        proxy.reset()
        lost = await next_event(events, "lost")
        assert lost.unsent >= waiting
        with pytest.raises(busway.Disconnected):
            await sending


def test_who_began_at_a_position_says_that_it_comes_back() -> None:
    """A broker that has lost its end refuses who begins behind that, but not who was there before."""
    guid, other = "0" * 32, "1" * 32
    began = encode_since(busway.Positions({(guid, "s"): 3, (other, "s"): 4}))
    assert msgspec.msgpack.decode(began)[0] == "at"
    kind, (places, *rest) = msgspec.msgpack.decode(since_again({(guid, "s"): 9}, began, 0))
    assert (kind, rest) == ("back", ["all", None])
    assert sorted(places) == [[guid, "s", 9], [other, "s", 4]]
