"""Log lines of a client: losses are warnings, and a repeated failure is one line each."""

import logging

import pytest

import busway
from busway.client.connection.log_lines import LINES, QUIET, TRACEBACK, LogLines
from busway.testing import FaultProxy
from tests.support.net import PATIENCE, Net, until, within

PROMPT = {"reconnect": (0, 0, 0.001), "timeout": PATIENCE}


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == level and one.name == "busway.client"]


async def test_a_lost_connection_and_the_next_one_are_warnings(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    server = await net.serve()
    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, **PROMPT) as bus:
        events = bus.events()
        async with bus.subscribe("news"):
            proxy.cut()
            async for event in events:
                if event.kind == "resumed":
                    break
    lost, resumed = lines(caplog, logging.WARNING)
    assert lost.startswith(f"connection lost to {proxy.address}: ")
    assert lost.endswith("; reconnecting")
    assert resumed.startswith(f"connected again to {proxy.address} after ")
    assert resumed.endswith("; 1 subscription(s) missed messages that were published in between")
    fields = next(one for one in caplog.records if one.getMessage() == resumed)
    assert (fields.url, fields.attempts >= 1, fields.interrupted) == (proxy.address, True, 1)


async def test_missed_messages_are_a_warning(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    bus = await net.connect()
    async with bus.subscribe("a/**", policy="drop_oldest", limit=1) as slow:
        for _ in range(50):
            await bus.publish("a/b", bytes(1000), confirm=True)
        while slow.missed == 0:
            await slow.recv(timeout=PATIENCE)
        await until(lambda: lines(caplog, logging.WARNING))
    told = lines(caplog, logging.WARNING)
    assert told[0].startswith("'a/**' missed ")
    assert len(told) <= 2, "one at once, and a sum in the end"


async def test_a_handler_that_fails_again_and_again_shows_one_traceback(
    net: Net, caplog: pytest.LogCaptureFixture
) -> None:
    bus = await net.connect()

    def refuse(message: busway.Message) -> bytes:
        raise ValueError(f"no such\ncustomer: {message.text}")

    async with bus.serve("sum", refuse):
        for number in range(5):
            with pytest.raises(busway.HandlerError):
                await within(bus.request("sum", str(number)))
    records = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert [one.getMessage() for one in records] == [
        f"the service of 'sum': ValueError: no such customer: {number}" for number in range(5)
    ]
    assert [one.exc_info is not None for one in records] == [True, False, False, False, False]


def test_a_traceback_of_each_kind_is_shown_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    logged = LogLines(lambda: now[0])

    def shown(error: Exception) -> bool:
        caplog.clear()
        logged.failed(error, "the handler", "a")
        return caplog.records[0].exc_info is not None

    assert (shown(ValueError("a")), shown(KeyError("a")), shown(ValueError("b"))) == (True, True, False)
    now[0] = TRACEBACK
    assert (shown(ValueError("c")), shown(ValueError("d"))) == (True, False)
    caplog.set_level(logging.DEBUG, "busway.client")
    assert shown(ValueError("e")), "at DEBUG each line has its traceback"


def test_failures_that_repeat_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    logged = LogLines(lambda: now[0])
    for number in range(1000):
        logged.failed(ValueError(str(number)), "the handler", "a")
    logged.failed(KeyError("other"), "the handler", "a")
    assert len(caplog.records) == LINES + 1
    caplog.clear()
    now[0] = QUIET
    logged.failed(ValueError("again"), "the handler", "a")
    assert [one.getMessage() for one in caplog.records] == [
        "the handler of 'a': 990 more failures, the last one: ValueError: 999",
        "the handler of 'a': ValueError: again",
    ]
    for _ in range(LINES):
        logged.failed(ValueError("last"), "the handler", "a")
    caplog.clear()
    logged.end()
    assert [one.getMessage() for one in caplog.records] == [
        "the handler of 'a': 1 more failures, the last one: ValueError: last"
    ]
