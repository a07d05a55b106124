"""Answers to what was asked of a node that has said meanwhile that it has the stream no longer: they come late, and harm nobody."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from busway.cluster.links.calls import Calls
from busway.cluster.node import Node, Stranger
from busway.cluster.protocol import ANSWER, PARTS
from busway.cluster.streams.messages import Fetched, Located, Part, Parts
from busway.cluster.streams.remote import RemoteStreams
from busway.errors import Code
from tests.support.cluster_streams import some, take
from tests.support.mirrored import Mirrored, follows

OTHER, THIRD = "a" * 32, "b" * 32
FOUND = Fetched(0, 0, 1, True, b"")


class Engine:
    """Hears what is asked."""

    def __init__(self):
        self.asked = []

    def node(self, conn, kind, number, body, *, ordered=False):
        self.asked.append((conn, number))

    def remote_stream(self, guid, name):
        return 1

    def remote_behind(self, number):
        pass


class Links:
    """Two links, and a stream of the first."""

    def __init__(self):
        self.engine = Engine()
        self.soon = []
        replays = SimpleNamespace(found_remote=lambda part: None)
        loop = SimpleNamespace(time=lambda: 0.0, call_soon=lambda *call: self.soon.append(call))
        runtime = SimpleNamespace(flush=lambda: None, arm=lambda: None, guid="f" * 32, engine=self.engine, loop=loop)
        self.calls = Calls(runtime)
        self.parts = RemoteStreams(runtime, self.calls, lambda: replays, lambda _guid: None)
        for conn, guid in ((7, OTHER), (8, THIRD)):
            self.calls.opened(conn, Node(guid, 1, "test"))
        self.tell(7)

    def tell(self, conn, *, there=True):
        self.calls.heard(
            conn, PARTS, 0, msgspec.msgpack.encode(Parts((Part(OTHER, "jobs", ("jobs/**",), there=there),)))
        )

    def answer(self, conn, number, value, code=Code.OK):
        self.calls.heard(conn, ANSWER, number, msgspec.msgpack.encode((int(code), "", value)))

    def ask(self):
        part = self.parts.find(OTHER, "jobs")
        got, places = [], []
        reader = part.reader("jobs/**", b"")
        reader.read(0, 100, lambda: got.append(reader.read(0, 100, lambda: None)))
        part.locate("new", 0, places.append)
        return got, places


@pytest.fixture
def links():
    return Links()


def test_an_answer_that_comes_late_is_left_alone_and_the_next_one_counts(links):
    got, places = links.ask()
    assert links.engine.asked == [(7, 1), (7, 2)]
    links.tell(7, there=False)
    for _ in range(2):
        links.answer(7, 1, None, Code.NO_STREAM)
        links.answer(7, 2, Located(5))
    assert (got, places) == ([], [])
    links.tell(8)
    assert links.engine.asked[2:] == [(8, 1), (8, 2)], "somebody else has it"
    links.answer(7, 1, FOUND)
    links.answer(8, 1, FOUND)
    links.answer(8, 2, Located(6))
    assert (got, places) == ([(0, 0, 1, b"", True)], [6])


def test_an_answer_that_was_never_asked_for_is_refused(links):
    got, places = links.ask()
    for conn, number, value, reason in (
        (7, 3, FOUND, "without a request"),  # not asked yet
        (7, 0, FOUND, "without a request"),
        (8, 1, FOUND, "without a request"),  # asked of another one
        (7, 1, Located(5), "invalid answer"),
        (7, 1, (5, 4, 6, True, b""), "wrong order"),
    ):
        with pytest.raises(Stranger, match=reason):
            links.answer(conn, number, value)
    assert (got, places) == ([], [])
    links.answer(7, 2, Located(5))
    assert places == [5]


def test_a_request_whose_link_is_lost_goes_to_the_next_one(links):
    got, places = links.ask()
    links.tell(8)
    assert links.engine.asked == [(7, 1), (7, 2)]
    links.calls.closed(7, 0.0)
    links.parts.closed(7, 0.0)
    for call, *arguments in links.soon:
        call(*arguments)
    assert links.engine.asked[2:] == [(8, 1), (8, 2)]
    links.answer(8, 1, FOUND)
    links.answer(8, 2, Located(5))
    assert (len(got), places) == (1, [5])


async def test_nodes_stay_linked_when_a_stream_is_removed_that_somebody_reads(nodes: Mirrored):
    a, b = await nodes.pair()
    c = await nodes.node("c")
    await nodes.whole(a, b, c)
    maker, reader = await nodes.client(a, learn=False), await nodes.client(c, learn=False)
    for _ in range(3):
        await maker.create_stream("jobs", ["jobs/**"])
        await some(maker, "jobs/1", 0, 5)
        await follows(a, b)
        async with reader.subscribe("jobs/**", since="all") as jobs:
            await take(jobs, 5)
            await maker.remove_stream("jobs")
            async with asyncio.timeout(60):
                while any((a.guid, "jobs") == key[:2] for key in b._hub.peers.members.replication.copies):
                    await asyncio.sleep(0.01)
            # All that was under way before this has come then, on each link.
            for node in (a, b):
                await (await nodes.client(node)).subscribe("flush", wait="cluster")
            await reader.subscribe("flush", wait="cluster")
    assert [one._hub.runtime.faults for one in (a, b, c)] == [0, 0, 0]
