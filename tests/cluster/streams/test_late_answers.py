"""Answers to what was asked of a node that has said meanwhile that it has the stream no longer: they come late, and harm nobody."""

import asyncio
from types import SimpleNamespace

import pytest

from busway.cluster.node import Node, Stranger
from busway.cluster.protocol import FETCHED, LOCATED, PARTS, SURVEYED
from busway.cluster.streams.messages import Fetched, Located, Part, Parts
from busway.cluster.streams.remote import RemoteStreams
from busway.cluster.streams.survey import Survey
from tests.support.cluster_streams import some, take
from tests.support.mirrored import Mirrored, follows

OTHER, THIRD = "a" * 32, "b" * 32
FOUND = Fetched(0, 0, 1, True, b"").pack()
GONE = Fetched(0, 0, 0, False, b"", "there is no such stream").pack()


class Engine:
    """Hears what is asked."""

    def __init__(self):
        self.asked = []

    def node(self, conn, kind, number, body):
        self.asked.append((conn, number))

    def remote_stream(self, guid, name):
        return 1

    def remote_behind(self, number):
        pass


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def parts(engine):
    """Two links, and a stream of the first."""
    clock = SimpleNamespace(arm=lambda: None)
    replays = SimpleNamespace(found_remote=lambda part: None)
    loop = SimpleNamespace(time=lambda: 0.0)
    parts = RemoteStreams(
        SimpleNamespace(guid="f" * 32, engine=engine, clock=clock, replays=replays, loop=loop),
        lambda _guid: None,
        lambda _number, _question: None,
    )
    parts.opened(7, Node(OTHER, 1, "test"))
    parts.opened(8, Node(THIRD, 1, "test"))
    tell(parts, 7)
    return parts


def tell(parts, conn, *, there=True):
    parts.heard(conn, PARTS, 0, Parts((Part(OTHER, "jobs", ("jobs/**",), there=there),)).pack())


def ask(parts):
    part = parts.find(OTHER, "jobs")
    got, places = [], []
    reader = part.reader("jobs/**", b"")
    reader.read(0, 100, lambda: got.append(reader.read(0, 100, lambda: None)))
    part.locate("new", 0, places.append)
    return got, places


def test_an_answer_that_comes_late_is_left_alone_and_the_next_one_counts(parts, engine):
    got, places = ask(parts)
    assert engine.asked == [(7, 1), (7, 2)]
    tell(parts, 7, there=False)
    for _ in range(2):
        parts.heard(7, FETCHED, 1, GONE)
        parts.heard(7, LOCATED, 2, Located(5).pack())
    assert (got, places) == ([], [])
    tell(parts, 8)
    assert engine.asked[2:] == [(8, 3), (8, 4)], "somebody else has it"
    parts.heard(7, FETCHED, 1, FOUND)
    parts.heard(8, FETCHED, 3, FOUND)
    parts.heard(8, LOCATED, 4, Located(6).pack())
    assert (got, places) == ([(0, 0, 1, b"", True)], [6])


def test_an_answer_that_was_never_asked_for_is_refused(parts):
    got, places = ask(parts)
    for conn, kind, number, body in (
        (7, FETCHED, 3, FOUND),  # not asked yet
        (7, FETCHED, 0, FOUND),
        (8, FETCHED, 1, FOUND),  # asked of another one
        (8, LOCATED, 2, Located(5).pack()),
        (7, FETCHED, 2, FOUND),  # which asks for a place
        (7, LOCATED, 1, Located(5).pack()),
    ):
        with pytest.raises(Stranger, match="answer without a request"):
            parts.heard(conn, kind, number, body)
    assert (got, places) == ([], [])
    parts.heard(7, FETCHED, 1, FOUND)
    parts.heard(7, LOCATED, 2, Located(5).pack())
    assert (len(got), places) == (1, [5]), "who was asked is heard all the same"
    parts.closed(7, 0.0)
    with pytest.raises(Stranger, match="answer without a request"):
        parts.heard(7, FETCHED, 1, FOUND)


def test_a_survey_that_nobody_has_made_has_no_answer():
    with pytest.raises(Stranger, match="answer without a request"):
        Survey(SimpleNamespace(), dict, lambda _stream: (), lambda _guid, _stream: None).heard(7, SURVEYED, 1, b"")


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
