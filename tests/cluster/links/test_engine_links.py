"""Two engines joined by their bytes, and the frames of links as docs/protocol.md has them."""

import pytest

from busway import _core, errors
from tests.support import page, wire
from tests.support.nodes import HELLO, Node, dial, join, pump
from tests.support.pair import Raw, engine

VECTORS = page.link_vectors()


def test_a_subscription_reaches_over_a_link() -> None:
    here, there = Node(), Node()
    ann, bob = Raw(here, 1, "ann"), Raw(there, 2, "bob")
    bob.ask(wire.subscribe(1, 1, "a/*"))
    near, far = join(here, there)
    assert [event for event in here.said if event[0] == _core.EVENT_SYNCED] == [(_core.EVENT_SYNCED, near)]
    ann.ask(wire.topic(0, "a/b"), wire.publish(0, b"one", 1))
    bob.ask(wire.subscribe(2, 2, "**", group="g"))
    pump(here, there)
    ann.ask(wire.publish(0, b"two", 2))
    pump(here, there)
    one, two = bob.deliveries()
    assert (one.ids, one.topic, one.payload, one.sender) == ((1,), "a/b", b"one", (1, "ann"))
    assert (sorted(two.ids), two.payload) == ([1, 2], b"two")
    assert here.engine.connection(near)["subscriptions"] == 2
    assert here.engine.stats()["links"] == 1
    there.engine.ping(far, 5)
    pump(here, there)
    assert there.said[-1] == (_core.EVENT_PONG, far, 5)
    here.disconnect(near)
    assert here.engine.stats()["subscriptions"] == 0


def test_pushes_and_requests_go_over_a_link() -> None:
    here, there = Node(), Node()
    join(here, there)
    ann, bob = Raw(here, 1, "ann"), Raw(there, 2, "bob")
    bob.ask(wire.subscribe(1, 1, "job"), wire.serve(7, 2, "sum"))
    pump(here, there)
    ann.send(wire.topic(0, "job"), wire.push(0, b"work", 1), wire.topic(1, "sum"), wire.request(1, b"1+2", 2))
    pump(here, there)
    (offer, offered), (call, called) = bob.read()
    assert (offer, call) == (wire.OFFER, wire.CALL)
    bob.send(wire.accept(offered.extra), wire.reply(called.extra, b"3"))
    pump(here, there)
    (result, told), (reply, said) = ann.read()
    assert (result, told.number, told.code, told.value) == (wire.RESULT, 1, 0, 1)
    assert (reply, said.number, said.payload) == (wire.REPLY, 2, b"3")
    assert ann.ask(wire.serve(1, 3, "sum"))[0][1].code == errors.Code.SERVICE_TAKEN


def test_what_nodes_say_besides_messages() -> None:
    here, there = Node(), Node()
    near, far = dial(here, there)
    assert here.said == [(_core.EVENT_WELCOME, near, 1, there.welcome(0))]
    here.engine.node(near, 3, 77, b"\x80")
    pump(here, there)
    assert there.said == [(_core.EVENT_NODE, far, 3, 77, b"\x80")]
    there.engine.close(far, errors.Code.CLUSTER, "another cluster")
    pump(here, there)
    assert here.closed == {near: (errors.Code.CLUSTER, "another cluster")}


def test_an_engine_that_was_made_for_no_links_says_so() -> None:
    made = engine()
    conn = made.dial(lambda view: None, HELLO)
    with pytest.raises(errors.BusError, match="made for no links"):
        made.link(conn)


def test_the_frames_of_links() -> None:
    """What the page says, written from the page, is what the engine writes and reads."""
    node = Node()
    ann = Raw(node, 0x0807060504030201, "ann")
    ann.ask(wire.subscribe(1, 1, "price/*"), wire.serve(1, 2, "sum"))
    conn = node.connect()

    def said(*names: str) -> bytes:
        return b"".join(VECTORS[name].data for name in names)

    node.feed(conn, said("hello-node", "node"))
    welcome = node.take(conn)
    assert welcome[4] == wire.WELCOME
    assert node.said == [(_core.EVENT_NODE, conn, 1, 5, b"\x80")]
    node.engine.node(conn, 1, 5, b"\x80")
    node.link(conn)
    assert node.take(conn) == said("node", "interest-all")

    node.feed(conn, said("interest", "topic-link", "sender-link"))
    assert node.said[-1] == (_core.EVENT_SYNCED, conn)
    node.feed(conn, said("deliver-link"))
    (delivery,) = ann.deliveries()
    assert (delivery.ids, delivery.topic, delivery.sender, delivery.payload) == (
        (1,),
        "price/eth",
        (0x816B9E7C25D559C5, "bob"),
        b"3012.5",
    )
    node.feed(conn, said("offer-link"))
    ((kind, offer),) = ann.read()
    assert (kind, offer.payload) == (wire.OFFER, b"job")
    ann.send(wire.accept(offer.extra))
    assert node.take(conn) == said("accept-link")
    node.feed(conn, said("topic-call", "call-link"))
    ((kind, call),) = ann.read()
    assert (kind, call.topic) == (wire.CALL, "sum")
    ann.send(wire.reply(call.extra, b"3"))
    assert node.take(conn) == said("reply-link")
    node.feed(conn, said("offer-link", "cancel-link"))
    assert [kind for kind, _ in ann.read()] == [wire.OFFER, wire.WITHDRAW]
    ann.send(wire.topic(0, "news"), wire.publish(0, b"up", 3))
    assert node.take(conn).endswith(said("deliver-out"))
    node.feed(conn, said("hold-link"))
    ann.send(wire.publish(0, b"up", 4))
    assert node.take(conn) == b""
    node.feed(conn, said("interest-end"))
    assert node.engine.connection(conn)["subscriptions"] == 0
    node.feed(conn, said("missed-link"))
    assert ann.read()[-1] == (wire.MISSED, (1, 3))
    assert not node.failed


def test_others_have_a_turn_between_frames_of_much_interest() -> None:
    """A node with many clients does not hold up those of another one when they are linked."""
    here, there = Node(), Node(links=10_000)
    ann = Raw(here, 1, "ann")
    wanted = 5000
    for first in range(0, wanted, 1000):
        ann.ask(
            *(wire.subscribe(number, number, f"plant/{number}/*/temperature") for number in range(first, first + 1000))
        )
    _, far = join(here, there)
    assert there.engine.stats()["subscriptions"] == wanted
    assert there.yields == [far] * 4  # 60 KiB each
    assert [event for event in there.said if event[0] == _core.EVENT_SYNCED] == [(_core.EVENT_SYNCED, far)]


def test_little_interest_needs_no_turn_of_others() -> None:
    here, there = Node(), Node()
    Raw(here, 1, "ann").ask(*(wire.subscribe(number, number, f"a/{number}") for number in range(100)))
    join(here, there)
    assert there.engine.stats()["subscriptions"] == 100
    assert not there.yields
