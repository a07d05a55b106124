"""Invalid fields, rules, retained messages and services: a clear error for the caller, and no effect on other clients."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import busway
from busway.errors import Code
from tests.support.net import PATIENCE, Net, gather, payloads, settle, until, within

pytestmark = pytest.mark.both_loops(every=True)

VERBS = ("publish", "publish_many", "push", "post", "unpost", "pin", "unpin", "request", "request_all")


def call(bus: busway.Bus, verb: str, fields: dict[str, Any]) -> Any:
    return getattr(bus, verb)("t", *([[b""]] if verb == "publish_many" else []), fields=fields)


@pytest.mark.parametrize(
    "fields",
    [{".id": "me"}, {"good": 1, ".x": 2}, {".": 1}, {"msg": b""}, {"": 1}, {"x": {1}}, {"x": object()}],
)
async def test_reserved_fields(net: Net, fields: dict[str, Any]) -> None:
    """ "Names that start with "." are reserved." And what can't be sent is refused by name, before anything goes out."""
    bus, other = await net.connect(), await net.connect()
    async with other.subscribe("**", listen=True) as subscription, other.serve("t", lambda _: b""):
        for verb in VERBS:
            with pytest.raises(busway.InvalidFields) as caught:
                await call(bus, verb, fields)
            assert caught.value.name == list(fields)[-1]
            assert repr(caught.value.name).strip("'") in str(caught.value)
        for made in (net.client, busway.serve):
            with pytest.raises(busway.InvalidFields):
                made(fields=fields)
        await settle(bus, other)
        assert subscription.received == 0
        assert await other.kept() == []
        await bus.publish("t", b"good", fields={"good": 1})
        assert await payloads(subscription, 1) == [b"good"]


async def test_oversized_fields(net: Net) -> None:
    """They are refused before they leave, with both figures, and nothing of the message is anywhere."""
    await net.serve(fields=1000)
    bus, other = await net.connect(), await net.connect()
    async with other.subscribe("**", listen=True) as subscription, other.serve("t", lambda _: b""):
        for verb in VERBS:
            with pytest.raises(busway.LimitExceeded, match=r"1006 bytes.* 1000") as caught:
                await call(bus, verb, {"x": "y" * 1000})
            assert caught.value.code == Code.FIELDS_TOO_LARGE
        await settle(bus, other)
        assert subscription.received == 0
        assert await other.kept() == []
        assert bus.state == "connected"
        await bus.publish("t", b"good", fields={"x": "y" * 900})
        assert await payloads(subscription, 1) == [b"good"]


async def test_fields_that_are_oversized_with_those_of_the_server(net: Net) -> None:
    """Only the broker can tell. Where nobody waits for its answer, an event tells."""
    await net.serve(fields={"region": "e" * (60 << 10)})
    bus, other = await net.connect(), await net.connect()
    fields = {"x": "y" * (10 << 10)}
    events = bus.events()
    async with other.subscribe("**", listen=True) as subscription, other.serve("t", lambda _: b""):
        for verb in VERBS:
            if verb.startswith("publish"):
                await call(bus, verb, fields)
                async with asyncio.timeout(PATIENCE):
                    event = await anext(events)
                assert (event.kind, type(event.error)) == ("rejected", busway.LimitExceeded)
            else:
                with pytest.raises(busway.LimitExceeded) as caught:
                    await call(bus, verb, fields)
                assert caught.value.code == Code.FIELDS_TOO_LARGE
        with pytest.raises(busway.LimitExceeded):
            await bus.publish("t", b"", fields=fields, confirm=True)
        await settle(bus, other)
        assert subscription.received == 0
        assert await other.kept() == []
        assert bus.state == "connected"


EXPRESSIONS = [
    ("value >", 1, 8),
    ("value + 1 >> 2", 1, 12),
    ("value == 1 &&\n  || true", 2, 3),
    ("nope(value)", 1, 5),
    ('"open', 1, 1),
]


@pytest.mark.parametrize(("text", "line", "column"), EXPRESSIONS)
async def test_an_expression_that_does_not_compile(net: Net, text: str, line: int, column: int) -> None:
    """The error has the place of the fault, and the field whose rule it is."""
    bus = await net.connect()
    place = f"line {line}, column {column}"
    for where, name in (({"good": 1, "n": busway.expr(text)}, "n"), (busway.expr(text), "")):
        for refused in (lambda: bus.subscribe("t", where=where), lambda: within(bus.kept("t", where=where))):
            with pytest.raises(busway.InvalidRule, match=place) as caught:
                await refused()
            assert (caught.value.name, caught.value.code) == (name, Code.INVALID_RULE)
            assert not name or '"n"' in str(caught.value)
    assert bus.state == "connected"


async def test_an_ask_that_never_answers_holds_nobody_up(net: Net) -> None:
    one, two, client = await net.connect("one", drain=0), await net.connect("two"), await net.connect()
    asked = 0

    async def never(message: busway.Message) -> bool:
        nonlocal asked
        asked += 1
        return await asyncio.Event().wait()

    async with (
        one.serve("s", lambda _: "1", shared=True, ask=never),
        two.serve("s", lambda _: "2", shared=True, ask=lambda _: True),
    ):
        for _ in range(5):
            assert (await within(client.request("s", timeout=None, each=PATIENCE * 2))).text == "2"
        await until(lambda: asked == 5, one.flush)
        # Where all are gathered it is waited for as long as one provider may take, and then named.
        replies = await within(client.request_all("s", timeout=None, each=0.5))
        assert [reply.text for reply in replies] == ["2"]
        assert [failed.sender for failed in replies.failed] == ["one"]


async def overtime(client: busway.Bus, asking: "asyncio.Future[busway.Message]") -> None:
    with pytest.raises(busway.Timeout):  # of the client's own clock: the broker of a shared service leaves that to it
        await within(asking)


async def cancelled(client: busway.Bus, asking: "asyncio.Future[busway.Message]") -> None:
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def gone(client: busway.Bus, asking: "asyncio.Future[busway.Message]") -> None:
    await client.close()
    await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
@pytest.mark.parametrize("end", [overtime, cancelled, gone], ids=lambda end: end.__name__)
async def test_a_reply_to_a_request_that_is_over(net: Net, end: Callable[..., Any], shared: bool) -> None:
    server, client, other = await net.connect("server"), await net.connect(drain=0), await net.connect()
    async with server.serve("s", shared=shared) as service:
        timeout = 0.05 if end is overtime else None
        asking = asyncio.ensure_future(client.request("s", b"1", timeout=timeout, each=PATIENCE))
        late = await service.recv(timeout=PATIENCE)
        await end(client, asking)
        await settle(other)
        # Whoever asks next, also on the same connection, gets its own reply and not that one.
        asker = other if end is gone else client
        asking = asyncio.ensure_future(asker.request("s", b"2", timeout=None, each=PATIENCE))
        request = await service.recv(timeout=PATIENCE)
        await late.reply(b"late part", last=False)
        await late.reply(b"late")
        await settle(server, asker)
        assert not asking.done()
        await request.reply(b"own")
        assert (await within(asking)).payload == b"own"
        assert (server.state, server.errors, asker.errors) == ("connected", 0, 0)


async def test_ten_thousand_posts_against_the_limit(net: Net) -> None:
    """What is beyond it is refused with a sentence that says what to do; everybody else goes on posting."""
    await net.serve(kept=1000)
    greedy, other = await net.connect("greedy"), await net.connect()
    async with other.subscribe("mine") as subscription:
        posts = (greedy.post(f"t/{number}", b"x") for number in range(10_000))
        outcomes = await asyncio.gather(*posts, return_exceptions=True)
        assert outcomes[:1000] == [None] * 1000
        refused = outcomes[1000:]
        assert {type(error) for error in refused} == {busway.LimitExceeded}
        assert {(error.code, "remove some first" in str(error)) for error in refused} == {(Code.TOO_MANY_KEPT, True)}
        await other.post("mine", b"yes")
        assert await payloads(subscription, 1) == [b"yes"]
    assert len(await other.kept("t/*")) == 1000
    with pytest.raises(busway.LimitExceeded):
        await greedy.post("t/more", b"x")
    await greedy.post("t/0", b"in its place")
    assert await greedy.unpost("t/1")
    await greedy.post("t/more", b"x")
    async with other.subscribe("t/*", notify=True, limit=2000) as late:
        assert [message.kind for message in await gather(late, 1001)] == ["post"] * 1000 + ["notify"]
