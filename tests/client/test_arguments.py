"""Arguments that can't be meant: refused by name, before anything is sent or left behind."""

import asyncio
from typing import Any

import pytest

import busway
import busway.sync


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"offline": "bufer"}, 'offline must be "fail" or a busway.Buffer'),
        ({"offline": None}, "offline must be"),
        ({"offline": busway.Buffer}, "offline must be"),
        ({"reconnect": [-1]}, r"reconnect\[0\]"),
        ({"reconnect": ["x"]}, r"reconnect\[0\]"),
        ({"reconnect": "5"}, "reconnect must be a list"),
        ({"jitter": 2}, "jitter"),
        ({"timeout": "5"}, "timeout: '5' is not a length of time"),
        ({"timeout": 0}, "timeout must be above zero"),
        ({"timeout": None}, "timeout must be a length of time"),
        ({"drain": -1}, "drain must not be negative"),
        ({"drain": float("nan")}, "drain must be a finite"),
        ({"name": 7}, "name must be a str"),
        ({"fields": ["x"]}, "fields must be a dict or None"),
        ({"fields": {".x": 1}}, "reserved"),
        ({"tls": True}, "tls must be a busway.TLS"),
        ({"credentials": 7}, "credentials must be"),
        ({"on_error": "log"}, "on_error must be a function"),
    ],
)
def test_connect_refuses_by_name(keywords: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        busway.connect("tcp://127.0.0.1:1", **keywords)
    with pytest.raises((TypeError, ValueError), match=text):
        busway.sync.connect("tcp://127.0.0.1:1", **keywords)


def test_an_address_is_a_text() -> None:
    with pytest.raises(TypeError, match="an address must be a str"):
        busway.connect(7420)
    with pytest.raises(TypeError, match="an address must be a str"):
        busway.serve(None)


@pytest.mark.parametrize(
    ("timeout", "text"),
    [
        ("1", "timeout: '1' is not a length of time"),
        (True, "timeout must be a length of time"),
        ([], "timeout must be a length of time"),
        (float("inf"), "timeout must be a finite"),
        (float("nan"), "timeout must be a finite"),
    ],
)
async def test_a_wrong_timeout_sends_nothing_and_leaves_nothing_behind(timeout: Any, text: str) -> None:
    got: list[bytes] = []
    async with busway.serve() as server, server.connect() as bus:
        async with (
            bus.serve("service", lambda message: got.append(message.payload)),
            bus.subscribe("queue", handler=lambda message: got.append(message.payload)),
            bus.subscribe("quiet") as quiet,
            bus.serve("silent") as silent,
        ):
            for call in (
                lambda: bus.request("service", b"never", timeout=timeout),
                lambda: bus.request("service", {"never": 1}, timeout=timeout),
                lambda: bus.request_all("service", b"never", timeout=timeout),
                lambda: bus.push("queue", b"never", timeout=timeout),
                lambda: bus.flush(timeout),
                lambda: bus.rtt(timeout),
                lambda: bus.drain(timeout),
                lambda: quiet.recv(timeout),
                lambda: quiet.take(10, timeout),
                lambda: silent.recv(timeout),
                lambda: server.stop(timeout),
            ):
                with pytest.raises((TypeError, ValueError), match=text.replace("timeout", "(timeout|drain)")):
                    await call()
            assert len(bus._core.pending) == 0
            assert not quiet._registration._waiters
            await bus.request("service", b"last")
            await bus.push("queue", b"last")
            await bus.flush()
            assert bus.state == "connected"
    assert got == [b"last", b"last"]


async def test_no_timeout_and_no_time_are_timeouts() -> None:
    async with busway.serve() as server, server.connect() as bus, bus.subscribe("t") as messages:
        async with bus.serve("s", lambda message: b"reply"):
            assert (await bus.request("s", timeout=None)).payload == b"reply"
        with pytest.raises(busway.Timeout):
            await messages.recv(timeout=0)


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"limit": "5"}, "limit must be a whole number"),
        ({"limit": 1.5}, "limit must be a whole number"),
        ({"limit": 0}, "limit must be above zero"),
        ({"limit": 2**70}, "limit must be at most"),
        ({"limit_bytes": -1}, "limit_bytes must be above zero"),
        ({"limit_bytes": None}, "limit_bytes must be a whole number"),
        ({"concurrency": True}, "concurrency must be a whole number"),
        ({"concurrency": 0}, "concurrency must be above zero"),
        ({"handler": "print"}, "handler must be a function"),
        ({"group": None}, "group must be a str"),
    ],
)
async def test_subscribe_refuses_by_name(keywords: dict[str, Any], text: str) -> None:
    async with busway.serve() as server, server.connect() as bus:
        with pytest.raises((TypeError, ValueError), match=text):
            bus.subscribe("t", **keywords)


@pytest.mark.parametrize(
    ("arguments", "keywords", "text"),
    [
        (("t", None), {"concurrency": "2"}, "concurrency must be a whole number"),
        (("t", None), {"concurrency": 0}, "concurrency must be above zero"),
        (("t", "handler"), {}, "handler must be a function"),
        (("t", None), {"shared": True, "ask": "me"}, "ask must be a function"),
        (("t", None), {"ask": bool}, "ask= needs shared=True"),
    ],
)
async def test_serve_refuses_by_name(arguments: Any, keywords: dict[str, Any], text: str) -> None:
    async with busway.serve() as server, server.connect() as bus:
        with pytest.raises((TypeError, ValueError), match=text):
            bus.serve(*arguments, **keywords)


async def test_publish_refuses_a_wrong_offline_by_name() -> None:
    async with busway.serve() as server, server.connect() as bus, bus.subscribe("t") as messages:
        for wrong in ("bufer", 5, busway.Buffer):
            with pytest.raises((TypeError, ValueError), match="offline must be"):
                await bus.publish("t", b"never", offline=wrong)
        await bus.publish("t", b"sent", offline="fail")
        await bus.flush()
        assert [message.payload for message in await messages.take()] == [b"sent"]


async def test_a_topic_of_the_broker_is_refused_without_a_connection_too() -> None:
    async with busway.serve("tcp://127.0.0.1:0") as server:
        bus = await busway.connect(server.addresses[0], reconnect=[60], jitter=0, offline=busway.Buffer())
        events = bus.events()
    async with asyncio.timeout(60):
        async for event in events:
            if event.kind == "lost":
                break
    with pytest.raises(busway.Forbidden, match="belongs to the broker"):
        await bus.publish("$bus/x", b"")
    await bus.publish("x", b"kept")
    assert len(bus._core.offline_buffer) == 1
    await bus.drain(0)
