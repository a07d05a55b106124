"""Errors that a service raises, as the requester gets them: code, details, and one line in the service's log."""

import asyncio
import logging

import msgspec
import pytest

import busway
from busway.errors import Code
from tests.support.net import PATIENCE, Net


class Pay(busway.Protocol, prefix="pay", reply=int):
    amount: int


def no_account(message: busway.Message) -> bytes:
    raise busway.HandlerError("no such account", code="no_account", details={"account": 7, "known": ["a", "b"]})


async def failing(bus: busway.Bus, topic: str, payload: object = b"") -> busway.HandlerError:
    with pytest.raises(busway.HandlerError) as caught:
        await bus.request(topic, payload, timeout=PATIENCE)
    return caught.value


@pytest.mark.parametrize("shared", [False, True])
async def test_code_and_details_reach_the_requester(net: Net, shared: bool, caplog: pytest.LogCaptureFixture) -> None:
    service, asker = await net.connect("bank"), await net.connect("shop")
    async with service.serve("pay", no_account, shared=shared):
        error = await failing(asker, "pay")
        assert (error.reason, error.code) == ("no such account", "no_account")
        assert error.details == {"account": 7, "known": ["a", "b"]}
        if shared:
            (failed,) = (await asker.request_all("pay", timeout=PATIENCE)).failed
            assert isinstance(failed.error, busway.HandlerError)
            assert (failed.sender, failed.error.code, failed.error.details) == ("bank", error.code, error.details)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_other_exceptions_have_their_name_as_code(net: Net) -> None:
    def divide(message: busway.Message) -> float:
        return 1 / len(message.payload)

    def plain(message: busway.Message) -> bytes:
        raise busway.HandlerError("not today")

    async def asynchronous(message: busway.Message) -> bytes:
        raise busway.HandlerError("later", code="busy")

    bus = await net.connect()
    async with bus.serve("divide", divide), bus.serve("plain", plain), bus.serve("later", asynchronous):
        error = await failing(bus, "divide")
        assert (error.code, error.details) == ("ZeroDivisionError", {})
        assert str(error) == "ZeroDivisionError: division by zero"
        error = await failing(bus, "plain")
        assert (error.code, error.details) == (Code.HANDLER_ERROR, {})
        assert (await failing(bus, "later")).code == "busy"


async def test_a_payload_that_does_not_fit_is_one_line_and_names_the_field(
    net: Net, caplog: pytest.LogCaptureFixture
) -> None:
    async def pay(request: Pay) -> int:
        return request.amount

    def plain(message: busway.Message) -> object:
        return message.json()["amount"]

    bus = await net.connect()
    async with bus.serve(Pay, "", pay), bus.serve("plain", plain):
        error = await failing(bus, "pay", {"amount": "many"})
        assert (error.code, error.details["field"], error.details["topic"]) == ("PayloadError", "amount", "pay")
        assert "'amount'" in str(error)
        error = await failing(bus, "plain", b"?")
        assert (error.code, error.details["topic"]) == ("PayloadError", "plain")
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 2
    assert not any(record.exc_info or "\n" in record.getMessage() for record in lines)
    assert "'pay'" in lines[0].getMessage()
    assert "'amount'" in lines[0].getMessage()


async def test_by_hand(net: Net) -> None:
    bus = await net.connect()
    async with bus.serve("ask") as service, bus.serve(Pay, "") as typed:
        first = asyncio.create_task(failing(bus, "ask"))
        await (await service.recv(timeout=PATIENCE)).fail("no", code="never", details={"why": "because"})
        assert ((await first).code, (await first).details) == ("never", {"why": "because"})
        second = asyncio.create_task(failing(bus, "pay", {"amount": 1}))
        await (await typed.recv(timeout=PATIENCE)).fail("no", code="never", details={"why": "because"})
        assert ((await second).code, (await second).details) == ("never", {"why": "because"})
        third = asyncio.create_task(failing(bus, "pay", {"amount": "x"}))
        waiting = asyncio.create_task(typed.recv())
        assert ((await third).code, (await third).details["field"]) == ("PayloadError", "amount")
        waiting.cancel()


async def test_details_that_can_not_be_sent_lose_only_themselves(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    details: dict[str, object] = {}

    def fail(message: busway.Message) -> bytes:
        raise busway.HandlerError("no", code="x", details=details)

    bus = await net.connect()
    async with bus.serve("fail", fail):
        details["thing"] = Odd()
        assert (await failing(bus, "fail")).details == {"thing": "odd"}
        details["thing"] = details
        error = await failing(bus, "fail")
        assert (error.code, error.details, error.reason) == ("x", {}, "no")
        details["thing"] = "x" * 10_000_000
        error = await failing(bus, "fail")
        assert (error.details, error.reason) == ({}, "no")
    assert "without its details" in caplog.text


async def test_json_of_a_message_that_is_none_names_the_topic(net: Net) -> None:
    bus = await net.connect()
    await bus.create_stream("s", topics=["t/**"])
    async with bus.subscribe("t/**") as live:
        await bus.publish("t/a", b"{not json")
        message = await live.recv(timeout=PATIENCE)
        for read in (message.json, lambda: busway.decode(Pay, message)):
            with pytest.raises(busway.PayloadError, match="'t/a'") as caught:
                read()
            assert (caught.value.topic, caught.value.position) == ("t/a", None)
            assert isinstance(caught.value, ValueError)
            assert isinstance(caught.value.__cause__, msgspec.DecodeError)
    position = await bus.publish("t/b", b"\xff", durable=True)
    async with bus.subscribe("t/**", since="all") as stored:
        message = await stored.recv(timeout=PATIENCE)
        for read in (message.json, lambda: busway.decode(Pay, message)):
            with pytest.raises(busway.BusError, match=f"'t/b'.*{position}") as caught:
                read()
            assert caught.value.position == position


async def test_json_that_is_nested_too_deep(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t") as live:
        await bus.publish("t", b"[" * 100_000)
        with pytest.raises(busway.PayloadError, match="'t'"):
            (await live.recv(timeout=PATIENCE)).json()
