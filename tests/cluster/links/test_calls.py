"""Calls between nodes: each has one result, whatever the link and the other node do."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from busway.cluster.links import calls as calls_module
from busway.cluster.links.calls import _MARGIN, Call, Calls
from busway.cluster.node import Node, Stranger
from busway.cluster.protocol import ANSWER, SELF
from busway.errors import Code, Disconnected, LimitExceeded, Rejected, StoreFailed, Timeout


class Question(msgspec.Struct, array_like=True, frozen=True):
    number: int

    def __post_init__(self):
        if self.number < 0:
            raise ValueError("below zero")


class Reply(msgspec.Struct, array_like=True, frozen=True):
    text: str


ASK = Call(200, "question", Question, Reply)
NEWS = Call(201, "piece of news", Question)
NODE = Node("a" * 32, 1, "test", frame=1024)


class Side:
    """One node; what it sends arrives when the test passes it on."""

    def __init__(self, loop):
        self.sent = []
        self.unexpected = []
        self.orders = []
        hub = SimpleNamespace(
            loop=loop, engine=self, flush=lambda: None, unexpected=lambda error, *_: self.unexpected.append(error)
        )
        self.calls = Calls(hub)
        self.calls.opened(7, NODE)

    def node(self, conn, kind, number, body, ordered=False):
        self.sent.append((kind, number, body))
        self.orders.append(ordered)


def pass_on(here, there):
    sent, here.sent = here.sent, []
    for frame in sent:
        there.calls.heard(7, *frame)


@pytest.fixture
async def sides():
    return Side(asyncio.get_running_loop()), Side(asyncio.get_running_loop())


async def turns(count=3):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_call_has_the_answer_of_the_other_node(sides):
    here, there = sides

    async def answer(conn, question):
        await asyncio.sleep(0)
        return Reply(f"{conn}: {question.number}")

    there.calls.serve(ASK, answer)
    both = [asyncio.create_task(here.calls.call(7, ASK, Question(number), 60)) for number in (1, 2)]
    await turns()
    pass_on(here, there)
    await turns()
    there.sent.reverse()
    pass_on(there, here)
    assert [reply.text for reply in await asyncio.gather(*both)] == ["7: 1", "7: 2"]
    assert not here.calls._links[7].open


@pytest.mark.parametrize(
    ("raised", "got", "code"),
    [
        (Rejected("no such stream", code=Code.NO_STREAM), Rejected, Code.NO_STREAM),
        (StoreFailed("no"), StoreFailed, Code.STORE_FAILED),
        (Disconnected("another one is gone"), StoreFailed, Code.STORE_FAILED),
        (msgspec.ValidationError("not a place"), Rejected, Code.INVALID_SETTING),
        (RuntimeError("oops"), StoreFailed, Code.STORE_FAILED),
    ],
)
async def test_an_error_of_the_other_node_is_raised_here(sides, raised, got, code):
    here, there = sides

    async def answer(conn, question):
        raise raised

    there.calls.serve(ASK, answer)
    call = asyncio.create_task(here.calls.call(7, ASK, Question(1), 60))
    await turns()
    pass_on(here, there)
    await turns()
    pass_on(there, here)
    with pytest.raises(got, match=str(raised)) as told:
        await call
    assert told.value.code == code
    assert there.unexpected == ([raised] if isinstance(raised, RuntimeError) else [])


async def test_a_call_fails_when_its_link_ends(sides):
    here, _ = sides
    call = asyncio.create_task(here.calls.call(7, ASK, Question(1), 60))
    await turns()
    here.calls.closed(7, 0.0)
    with pytest.raises(Disconnected, match="the link to the node has ended"):
        await call
    with pytest.raises(Disconnected):
        await here.calls.call(7, ASK, Question(1), 60)


async def test_a_call_fails_when_its_time_is_over_and_a_late_answer_is_ignored(sides):
    here, _ = sides
    with pytest.raises(Timeout, match=r"no answer within 0.01 s"):
        await here.calls.call(7, ASK, Question(1), 0.01)
    here.calls.heard(7, ANSWER, 1, msgspec.msgpack.encode((0, "", Reply("late"))))
    assert not here.calls._links[7].open


async def test_an_answer_to_a_call_that_is_cancelled_at_the_same_time_is_ignored(sides):
    here, _ = sides
    call = asyncio.create_task(here.calls.call(7, ASK, Question(1), 60))
    await turns()
    call.cancel()
    here.calls.heard(7, ANSWER, 1, msgspec.msgpack.encode((0, "", Reply("late"))))
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not here.calls._links[7].open


@pytest.mark.parametrize(
    ("kind", "number", "body", "reason"),
    [
        (ANSWER, 2, msgspec.msgpack.encode((0, "", Reply("x"))), "answer without a request"),
        (ANSWER, 0, msgspec.msgpack.encode((0, "", Reply("x"))), "answer without a request"),
        (ANSWER, 1, b"\xc1", "invalid answer to question"),
        (ANSWER, 1, msgspec.msgpack.encode((0, "", None)), "invalid answer to question"),
        (ANSWER, 1, msgspec.msgpack.encode((0, "", (7,))), "invalid answer to question"),
        (ANSWER, 1, msgspec.msgpack.encode((1 << 16, "", None)), "invalid answer to question"),
        (200, 1, b"", "invalid question"),
        (200, 1, msgspec.msgpack.encode((-1,)), "invalid question: below zero"),
        (201, 1, msgspec.msgpack.encode(("x",)), "invalid piece of news"),
    ],
)
async def test_a_frame_that_is_not_valid_is_refused(sides, kind, number, body, reason):
    here, _ = sides
    here.calls.on(ASK, lambda *_: pytest.fail("nobody asks that"))
    here.calls.on(NEWS, lambda *_: pytest.fail("nobody says that"))
    results = []
    here.calls.send(7, ASK, Question(1), results.append)
    with pytest.raises(Stranger, match=reason):
        here.calls.heard(7, kind, number, body)
    assert results == []
    here.calls.closed(7, 0.0)
    await turns()
    assert [type(result) for result in results] == [Disconnected]


async def test_an_answer_that_is_too_long_for_the_other_node_is_an_error(sides):
    here, there = sides
    there.calls.on(ASK, lambda conn, number, ask: there.calls.answer(conn, ASK, number, Reply("x" * ask.number)))
    results = []
    for length in (1024 + _MARGIN - 20, 1024 + _MARGIN):
        here.calls.send(7, ASK, Question(length), results.append)
        pass_on(here, there)
        pass_on(there, here)
    assert [type(result) for result in results] == [Reply, LimitExceeded]


async def test_an_answer_keeps_its_place_among_messages_if_the_call_says_so(sides):
    _, there = sides
    for ordered in (False, True):
        there.calls.answer(7, Call(200, "question", Question, Reply, ordered=ordered), 1, Reply("x"))
    assert there.orders == [False, True]


async def test_this_node_is_called_like_another_one(sides):
    here, _ = sides
    heard = []
    here.calls.on(NEWS, lambda conn, _, content: heard.append((conn, content)))
    here.calls.on(ASK, lambda conn, number, _: here.calls.answer(conn, ASK, number, Reply("mine")))
    assert await here.calls.call(SELF, ASK, Question(1), 60) == Reply("mine")
    here.calls.tell(SELF, NEWS, Question(5))
    assert heard == []
    await turns()
    assert heard == [(SELF, Question(5))]


async def test_the_work_for_a_link_that_has_ended_is_answered_to_nobody(sides):
    """Another link may have the same number by then."""
    _, there = sides
    go_on = asyncio.Event()

    async def answer(conn, question):
        await go_on.wait()
        return Reply("late")

    there.calls.serve(ASK, answer)
    there.calls.heard(7, 200, 1, msgspec.msgpack.encode(Question(1)))
    there.calls.closed(7, 0.0)
    there.calls.opened(7, NODE)
    go_on.set()
    await turns()
    assert there.sent == []


async def test_a_node_has_a_limited_number_of_calls_at_a_time(sides, monkeypatch):
    monkeypatch.setattr(calls_module, "_MOST", 2)
    _, there = sides
    go_on = asyncio.Event()

    async def answer(conn, question):
        await go_on.wait()
        return Reply("x")

    there.calls.serve(ASK, answer)
    body = msgspec.msgpack.encode(Question(1))
    for number in (1, 2):
        there.calls.heard(7, 200, number, body)
    with pytest.raises(Stranger, match="more than 2 calls"):
        there.calls.heard(7, 200, 3, body)
    go_on.set()
    await turns()
    there.calls.heard(7, 200, 3, body)
    await turns()
    assert [number for _, number, _ in there.sent] == [1, 2, 3]


async def test_a_stop_ends_the_work(sides):
    _, there = sides
    ended = []

    async def answer(conn, question):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(question)

    there.calls.serve(ASK, answer)
    there.calls.heard(7, 200, 1, msgspec.msgpack.encode(Question(1)))
    await turns()
    await there.calls.stop()
    assert ended == [Question(1)]
    assert there.sent == []
