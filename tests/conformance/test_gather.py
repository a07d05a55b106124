"""Requests that several services answer: all replies at once, or each as it comes, the last one marked."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable

import pytest

import busway
from busway.client.connection.core import END
from busway.client.typed.protocol import Protocol
from tests.support.net import PATIENCE, Net, settle, within

pytestmark = pytest.mark.both_loops


class Answer(Protocol):
    text: str


class Question(Protocol[Answer], prefix="question"):
    text: str


def says(text: str) -> Callable[[busway.Message], str]:
    return lambda message: text


async def count(message: busway.Message) -> AsyncIterator[str]:
    for number in range(int(message.text)):
        yield str(number)


async def test_all_replies_come_as_one_list(net: Net) -> None:
    """ "O requerente acumula as várias respostas numa array, até receber a ultima resposta. Entrega a array à callback." """
    buses = [await net.connect(name) for name in ("a", "b", "c", "")]
    client = await net.connect()
    services = [await bus.serve("status", says(bus.name * 2), shared=True) for bus in buses]
    replies = await client.request_all("status", b"?", timeout=PATIENCE)
    assert isinstance(replies, list)
    (nameless,) = (reply.sender for reply in replies if len(reply.sender) > 1)
    assert len(nameless) == len(f"{int(nameless, 16):016x}"), "without a name it is the session"
    assert {reply.sender: reply.text for reply in replies} == {"a": "aa", "b": "bb", "c": "cc", nameless: ""}
    assert [reply.last for reply in replies] == [False, False, False, True]
    assert {(reply.kind, reply.topic) for reply in replies} == {("reply", "status")}
    assert replies.failed == []
    for service in services:
        await service.close()
    assert not client._core.gathering


async def test_only_the_willing_reply(net: Net) -> None:
    one, two, three = await net.connect("one"), await net.connect("two"), await net.connect("three")
    async with (
        one.serve("s", says("1"), shared=True, ask=lambda message: True),
        two.serve("s", says("2"), shared=True, ask=lambda message: False),
        three.serve("s", says("3"), shared=True),
    ):
        replies = await one.request_all("s")
        assert sorted(reply.text for reply in replies) == ["1", "3"]
        assert replies.failed == []


async def test_nobody_there_or_willing(net: Net) -> None:
    bus = await net.connect()
    with pytest.raises(busway.NoResponders):
        await bus.request_all("s", timeout=None)
    with pytest.raises(busway.NoResponders):
        async for _ in bus.request_many("s", timeout=None):
            pass
    async with bus.serve("s", says("1"), shared=True, ask=lambda message: False):
        with pytest.raises(busway.NoResponders):
            await bus.request_all("s", timeout=None)


async def test_a_failure_is_named_beside_the_replies(net: Net) -> None:
    good, bad = await net.connect("good"), await net.connect("bad", on_error=lambda error: None)
    client = await net.connect()

    def failing(message: busway.Message) -> str:
        raise LookupError("no such thing")

    async with good.serve("s", says("yes"), shared=True), bad.serve("s", failing, shared=True):
        replies = await client.request_all("s")
        assert [(reply.sender, reply.text) for reply in replies] == [("good", "yes")]
        (failed,) = replies.failed
        assert failed.sender == "bad"
        assert isinstance(failed.error, busway.HandlerError)
        assert "no such thing" in str(failed.error)
    async with bad.serve("s", failing, shared=True):
        replies = await client.request_all("s")
        assert (replies, [failed.sender for failed in replies.failed]) == ([], ["bad"])


async def test_who_dies_is_named(net: Net) -> None:
    good, dying, client = await net.connect("good"), await net.connect("dying", drain=0), await net.connect()
    service = await dying.serve("s", shared=True)
    async with good.serve("s", says("yes"), shared=True):
        asking = asyncio.ensure_future(client.request_all("s", timeout=None, each=PATIENCE))
        await service.recv(timeout=PATIENCE)
        await dying.close()
        replies = await within(asking)
    assert [reply.sender for reply in replies] == ["good"]
    assert [(failed.sender, failed.error.code) for failed in replies.failed] == [("dying", 42)]
    assert isinstance(replies.failed[0].error, busway.ServiceGone)


@pytest.mark.parametrize("limit", [{"timeout": 0.05}, {"timeout": None, "each": 0.05}], ids=["total", "each"])
async def test_who_is_late_is_named(net: Net, limit: dict[str, float]) -> None:
    good, late, client = await net.connect("good"), await net.connect("late", drain=0), await net.connect()
    async with good.serve("s", says("yes"), shared=True), late.serve("s", shared=True) as service:
        gathering = client.request_many("s", **limit)
        replies = await within(gathering.all())
        assert [reply.sender for reply in replies] == ["good"]
        assert [failed.sender for failed in replies.failed] == ["late"]
        assert not client._core.gathering
        await (await service.recv(timeout=PATIENCE)).reply(b"after the end")
        await settle(late, client)
        assert [reply async for reply in gathering] == []
        assert (client.state, client.errors, late.errors) == ("connected", 0, 0)


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ({"timeout": 0.05}, "silent did not say within the 0.05 s that the requester gave whether it is willing"),
        ({"timeout": None, "each": 0.05}, "silent did not say within 0.05 s whether it is willing"),
    ],
    ids=["total", "each"],
)
async def test_who_does_not_say_whether_it_is_willing_is_named(net: Net, limit: dict[str, float], text: str) -> None:
    good, silent, client = await net.connect("good"), await net.connect("silent"), await net.connect()

    async def ask(message: busway.Message) -> bool:
        await asyncio.Event().wait()
        return True

    async with silent.serve("s", says("no"), shared=True, ask=ask):
        replies = await within(client.request_all("s", **limit))
        assert (replies, [(failed.sender, str(failed.error)) for failed in replies.failed]) == ([], [("silent", text)])
        async with good.serve("s", says("yes"), shared=True):
            gathering = client.request_many("s", **limit)
            assert [reply.sender async for reply in gathering] == ["good"]
        assert [(failed.sender, str(failed.error)) for failed in gathering.failed] == [("silent", text)]
        assert isinstance(gathering.failed[0].error, busway.ServiceGone)


async def test_who_dies_while_it_is_asked_is_named_and_the_unwilling_are_not(net: Net) -> None:
    dying, other, client = await net.connect("dying", reconnect=None), await net.connect("other"), await net.connect()
    asked = asyncio.Event()

    async def ask(message: busway.Message) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    await dying.serve("s", says("no"), shared=True, ask=ask)
    async with other.serve("s", says("no"), shared=True, ask=lambda message: False):
        asking = asyncio.ensure_future(client.request_all("s", timeout=None, each=PATIENCE))
        await within(asked.wait())
        assert dying._core.connection is not None
        dying._core.connection.fail(busway.Disconnected("cut"))
        replies = await within(asking)
    assert (replies, [failed.sender for failed in replies.failed]) == ([], ["dying"])
    assert isinstance(replies.failed[0].error, busway.ServiceGone)


async def test_who_is_set_aside_is_named(net: Net) -> None:
    good, bad = await net.connect("good"), await net.connect("bad", on_error=lambda error: None)
    client = await net.connect()

    def failing(message: busway.Message) -> str:
        raise LookupError("no such thing")

    async with bad.serve("s", failing, shared=True):
        for _ in range(3):
            with pytest.raises(busway.HandlerError):
                await client.request("s")
        with pytest.raises(busway.NoResponders):
            await client.request("s")
        text = "bad is set aside after 3 failures"
        replies = await client.request_all("s", timeout=None)
        assert (replies, [(failed.sender, str(failed.error)) for failed in replies.failed]) == ([], [("bad", text)])
        async with good.serve("s", says("yes"), shared=True):
            replies = await client.request_all("s", timeout=None)
            assert [reply.sender for reply in replies] == ["good"]
            assert [(failed.sender, str(failed.error)) for failed in replies.failed] == [("bad", text)]


async def test_replies_are_given_as_they_come(net: Net) -> None:
    one, two, client = await net.connect("one"), await net.connect("two"), await net.connect()
    gate = asyncio.Event()

    async def slow(message: busway.Message) -> str:
        await gate.wait()
        return "slow"

    async with (
        one.serve("s", slow, shared=True),
        two.serve("s", says("quick"), shared=True),
    ):
        replies = client.request_many("s", timeout=None, each=PATIENCE)
        first = await within(anext(replies))
        assert (first.text, first.sender, first.last) == ("quick", "two", False)
        gate.set()
        second = await within(anext(replies))
        assert (second.text, second.sender, second.last) == ("slow", "one", True)
        with pytest.raises(StopAsyncIteration):
            await anext(replies)
        assert replies.failed == []


@pytest.mark.parametrize("shared", [False, True])
async def test_intermediate_replies_are_marked_and_the_last_is_a_plain_one(net: Net, shared: bool) -> None:
    """ "as repostas intermedias são identificadas como tal e a ultima resposta é uma resposta normal (identifica o fim)." """
    server, client = await net.connect("server"), await net.connect()
    async with server.serve("count", count, shared=shared):
        for most in (1, 2, 5):
            got = [(reply.text, reply.last) async for reply in client.request_many("count", str(most))]
            assert got == [(str(number), number == most - 1) for number in range(most)]
        assert [reply async for reply in client.request_many("count", "0")] == []
        assert (await client.request_all("count", "0")).failed == []
        assert (await client.request("count", "0")).payload == b""
        assert [reply.text for reply in await client.request_all("count", "3")] == ["0", "1", "2"]


async def test_a_generator_that_raises_fails_after_what_it_gave(net: Net) -> None:
    errors: list[BaseException] = []
    server, client = await net.connect("server", on_error=errors.append), await net.connect()

    async def broken(message: busway.Message) -> AsyncIterator[str]:
        yield "1"
        yield "2"
        raise LookupError("then it broke")

    async with server.serve("s", broken, shared=True):
        replies = client.request_many("s")
        assert [reply.text async for reply in replies] == ["1", "2"]
        assert [(failed.sender, type(failed.error)) for failed in replies.failed] == [("server", busway.HandlerError)]
        with pytest.raises(busway.HandlerError, match="then it broke"):
            await client.request("s")
    assert [type(error) for error in errors] == [LookupError] * 2


async def test_a_service_without_a_handler_replies_in_parts(net: Net) -> None:
    server, client = await net.connect(), await net.connect()
    async with server.serve("s") as service:
        replies = client.request_many("s", timeout=PATIENCE)
        asking = asyncio.ensure_future(anext(replies))
        request = await service.recv(timeout=PATIENCE)
        await request.reply(b"1", last=False)
        assert (await within(asking)).payload == b"1"  # at once, not with the next
        await request.reply(b"2", last=False)
        await request.reply(b"3")
        assert [(reply.payload, reply.last) async for reply in replies] == [(b"2", False), (b"3", True)]
        with pytest.raises(busway.LocalProtocolError):
            await request.reply(b"4")
        plain = asyncio.ensure_future(client.request("s", timeout=PATIENCE))
        request = await service.recv(timeout=PATIENCE)
        await request.reply(b"1", last=False)
        await request.fail("no more")
        with pytest.raises(busway.HandlerError, match="no more"):
            await within(plain)
    assert not client._core.pending._held


async def test_an_end_after_all_replies_is_no_reply(net: Net) -> None:
    """Who asked for one gets the last that came."""
    server, client = await net.connect(), await net.connect()
    async with server.serve("s") as service:
        for many in (False, True):
            asking = asyncio.ensure_future(client.request_all("s") if many else client.request("s"))
            request = await service.recv(timeout=PATIENCE)
            await request.reply(b"1", last=False)
            await request.reply(b"2", last=False)
            request._answer(b"", END)
            answer = await within(asking)
            found = [reply.payload for reply in answer] if isinstance(answer, list) else answer.payload
            assert found == ([b"1", b"2"] if many else b"2")


async def test_the_failure_of_an_exclusive_service_is_one_among_the_failed(net: Net) -> None:
    server, client = await net.connect(), await net.connect()

    def failing(message: busway.Message) -> str:
        raise busway.HandlerError("no")

    async with server.serve("s", failing):
        replies = await client.request_all("s")
        assert (replies, [str(failed.error) for failed in replies.failed]) == ([], ["no"])


@pytest.mark.parametrize("how", ["break", "aclose", "cancel"])
async def test_leaving_cancels_the_request_at_the_broker(net: Net, how: str) -> None:
    server, client = await net.connect(), await net.connect()
    assert net.server is not None
    assert net.server._hub is not None
    asked = net.server._hub.services.asking

    async def leave() -> None:
        if how == "cancel":
            await client.request_all("s", timeout=None, each=PATIENCE)
        replies = client.request_many("s", timeout=None, each=PATIENCE)
        async for reply in replies:
            assert reply.payload == b"1"
            if how == "break":
                return
            await replies.aclose()

    async with server.serve("s", shared=True) as service:
        leaving = asyncio.ensure_future(leave())
        request = await service.recv(timeout=PATIENCE)
        assert asked.pending == 1
        if how == "cancel":
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
        else:
            await request.reply(b"1", last=False)
            await within(leaving)
        gc.collect()
        await settle(client)
        assert asked.pending == 0
        assert not client._core.gathering


async def test_a_loss_ends_what_was_gathered(net: Net) -> None:
    server, client = await net.connect(), await net.connect(reconnect=None)
    assert net.server is not None
    async with server.serve("s", shared=True) as service:
        replies = client.request_many("s", timeout=None, each=PATIENCE)
        asking = asyncio.ensure_future(anext(replies))
        await (await service.recv(timeout=PATIENCE)).reply(b"1", last=False)
        assert (await within(asking)).payload == b"1"
        waiting = asyncio.ensure_future(anext(replies))
        await settle(client)
        assert client._core.connection is not None
        client._core.connection.fail(busway.Disconnected("cut"))
        with pytest.raises(busway.Disconnected):
            await within(waiting)
        with pytest.raises(StopAsyncIteration):
            await anext(replies)


async def test_an_exclusive_service_that_is_late_is_a_timeout(net: Net) -> None:
    server, client = await net.connect(drain=0), await net.connect()
    async with server.serve("s") as service:
        with pytest.raises(busway.Timeout):
            await client.request_all("s", timeout=0.01)
        asking = asyncio.ensure_future(client.request_all("s", timeout=1.0))
        await service.recv(timeout=PATIENCE)
        await (await service.recv(timeout=PATIENCE)).reply(b"1", last=False)
        replies = await within(asking)
        assert [reply.payload for reply in replies] == [b"1"]
        assert [type(failed.error) for failed in replies.failed] == [busway.Timeout]


async def test_typed_replies(net: Net) -> None:
    one, two, client = await net.connect("one"), await net.connect("two"), await net.connect()

    async def several(question: Question) -> AsyncIterator[Answer]:
        yield Answer(text=question.text + "1")
        yield Answer(text=question.text + "2")

    async with one.serve(Question, "", several, shared=True):
        replies = await client.request_all("", Question(text="x"))
        assert [reply.value for reply in replies] == [Answer(text="x1"), Answer(text="x2")]
        assert [(reply.message.last, reply.message.sender) for reply in replies] == [(False, "one"), (True, "one")]
        got = [value.text async for _, value in client.request_many("", Question(text="y"))]
        assert got == ["y1", "y2"]
        async with two.serve("question", says("not json"), shared=True):
            replies = await client.request_all("", Question(text="x"))
            assert len(replies) == 2
            assert [(one.sender, type(one.error)) for one in replies.failed] == [("two", busway.PayloadError)]


async def test_one_consumer_at_a_time(net: Net) -> None:
    server, client = await net.connect(drain=0), await net.connect()
    async with server.serve("s", shared=True):
        replies = client.request_many("s", timeout=None, each=PATIENCE)
        first = asyncio.ensure_future(anext(replies))
        await settle(client)
        with pytest.raises(busway.LocalProtocolError):
            await anext(replies)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await replies.aclose()


async def test_a_long_stream_of_replies_arrives_whole(net: Net) -> None:
    server, client = await net.connect(), await net.connect()

    async def many(message: busway.Message) -> AsyncIterator[bytes]:
        for _ in range(2000):
            yield b"x" * 1000

    async with server.serve("s", many, shared=True), server.serve("t", many):
        for topic in ("s", "t"):
            sizes = [len(reply.payload) async for reply in client.request_many(topic, timeout=PATIENCE, each=PATIENCE)]
            assert sizes == [1000] * 2000


async def test_replies_that_nobody_takes_are_bounded(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("busway.client.services.gather._MOST", 10)
    server, client = await net.connect(), await net.connect()
    async with server.serve("s") as service:
        replies = client.request_many("s", timeout=PATIENCE)
        first = asyncio.ensure_future(anext(replies))
        request = await service.recv(timeout=PATIENCE)
        await request.reply(b"0", last=False)
        assert (await within(first)).payload == b"0"
        for number in range(1, 30):
            await request.reply(str(number), last=False)
        await settle(server, client)
        taken = []
        with pytest.raises(busway.LimitExceeded):
            async for reply in replies:
                taken.append(int(reply.text))
        assert taken == list(range(1, 12))
        assert not client._core.gathering


async def test_a_service_alone_is_named_too(net: Net) -> None:
    bus, other = await net.connect(), await net.connect("alone")
    async with other.serve("s", lambda message: b"1"):
        (reply,) = await bus.request_all("s")
        assert (reply.text, reply.sender, reply.fields) == ("1", "alone", {})

        async def dies(message: busway.Message) -> bytes:
            raise ValueError("no")

    async with other.serve("s", dies):
        replies = await bus.request_all("s")
        assert [failed.sender for failed in replies.failed] == ["alone"]
