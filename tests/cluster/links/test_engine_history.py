"""Engines joined by their bytes: subscribers of another node's streams get each message, or the offset to read from."""

from busway import _core
from tests.support import wire
from tests.support.nodes import Node, join, pump
from tests.support.pair import GUID, Raw

SINCE = b"\x92\xa3all\xc0"
RECORD = 0x1E


def two(**limits: int):
    """A node with a stream, one without, and a subscription there that has read to the end."""
    here, there = Node(log=_core.Log.open(None, name="orders", safety="memory"), **limits), Node()
    near, far = join(here, there)
    ann, bob = Raw(here, 1, "ann"), Raw(there, 2, "bob")
    bob.ask(wire.subscribe(1, 1, "a", since=SINCE))
    stream = there.engine.remote_stream(GUID, "orders")
    there.engine.add_cursor(bob.conn, 1, stream)
    pump(here, there)
    ann.send(wire.topic(0, "a"))
    return here, there, (near, far), ann, bob, stream


def live(there, bob, stream, behind=0, block=b"", end=True):
    return there.engine.replay(bob.conn, 1, stream, block, behind, _core.Selection("a"), None, end)


def payloads(there, bob):
    there.handle(there.engine.flush())
    return [got.record.payload for kind, got in bob.read() if kind == RECORD]


def store(here, ann, first, count, size=1):
    for number in range(first, first + count):
        ann.send(wire.publish(0, b"x" * size, number, flags=wire.DURABLE))
    here.handle(here.engine.commit(2))


def test_a_record_comes_when_all_before_it_was_read() -> None:
    here, there, _, ann, bob, stream = two()
    store(here, ann, 1, 3)
    pump(here, there)
    assert payloads(there, bob) == []  # it has not begun
    assert live(there, bob, stream, 2) == (2, None, False)  # the third is there already
    assert live(there, bob, stream, 3, end=False) == (3, None, False)
    assert live(there, bob, stream, 3) == (3, None, True)
    store(here, ann, 4, 2)
    pump(here, there)
    assert payloads(there, bob) == [b"x", b"x"]


def test_without_the_way_it_is_behind_where_it_was() -> None:
    here, there, (_, far), ann, bob, stream = two()
    live(there, bob, stream)
    store(here, ann, 1, 5)
    pump(here, there)
    assert len(payloads(there, bob)) == 5
    seen = []
    there.cursors[bob.conn, 1] = _core.Selection("a"), 0
    there.disconnect(far)
    there.engine.remote_behind(stream)
    there.handle(there.engine.flush())
    seen.append(there.cursors[bob.conn, 1][1])
    assert seen == [5]


def test_a_full_link_tells_from_where_on_to_read() -> None:
    here, there, (near, _), ann, bob, stream = two(outbox=1 << 20)
    live(there, bob, stream)
    there.cursors[bob.conn, 1] = _core.Selection("a"), 0
    here.writing(near, False)  # nothing leaves
    store(here, ann, 1, 400, 4000)
    assert not here.waits(ann.conn)  # nobody waits for who can read it later
    here.writing(near, True)
    pump(here, there)
    got = len(payloads(there, bob))
    assert 0 < got < 400
    # It reads on exactly where it was left behind.
    assert there.cursors[bob.conn, 1][1] == got
    store(here, ann, 401, 1)
    pump(here, there)
    assert payloads(there, bob) == []
    assert live(there, bob, stream, 401) == (401, None, True)
    store(here, ann, 402, 1)
    pump(here, there)
    assert len(payloads(there, bob)) == 1


def test_who_subscribes_without_since_gets_it_live() -> None:
    here, there, _, ann, bob, _ = two()
    carl = Raw(there, 3, "carl")
    carl.ask(wire.subscribe(1, 1, "a"))
    pump(here, there)
    store(here, ann, 1, 2)
    pump(here, there)
    assert payloads(there, carl) == [b"x", b"x"]
    assert payloads(there, bob) == []


def test_a_word_in_order_is_heard_before_what_follows() -> None:
    here, there, (near, far), ann, bob, stream = two()
    live(there, bob, stream)
    here.engine.node(near, 32, 7, b"\x80", ordered=True)
    store(here, ann, 1, 1)
    data = here.take(near)
    events = there.engine.feed(far, data, len(data)) or []
    assert [event[0] for event in events] == [_core.EVENT_NODE, _core.EVENT_YIELD]
    there.handle(there.engine.resume(far))
    assert payloads(there, bob) == [b"x"]


def test_what_a_node_got_back_is_told_to_those_who_were_at_its_end() -> None:
    here, there, _, ann, bob, stream = two()
    store(here, ann, 1, 2)
    pump(here, there)
    assert live(there, bob, stream, 2) == (2, None, True)
    there.cursors[bob.conn, 1] = _core.Selection("a"), 0
    # A mirror has given back one more, which nobody publishes.
    here.engine.recovered(2, 3, whole=False)
    pump(here, there)
    assert there.cursors[bob.conn, 1][1] == 2, "it reads on there"
    assert live(there, bob, stream, 3) == (3, None, True)


def test_what_was_read_from_a_copy_does_not_come_again_when_its_node_knows_that_it_is_safe() -> None:
    here, there, _, ann, bob, stream = two()
    assert live(there, bob, stream, 2) == (2, None, True), "a copy had two, of which their node says nothing yet"
    store(here, ann, 1, 3)
    pump(here, there)
    assert payloads(there, bob) == [b"x"], "the third"
