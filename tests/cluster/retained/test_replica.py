"""What is kept everywhere: nodes that tell each other of posts and pins agree in the end, whatever was cut meanwhile."""

from random import Random

import msgspec
import pytest

from busway.broker.flags import PIN, POST
from busway.broker.retained.store import RetainedMessage, body_of
from busway.cluster.node import Stranger
from busway.cluster.retained.replica import WORDS, All, Drop, Put, RetainedReplica, Sum, Word, put, word_of
from tests.support.cluster import Cluster
from tests.support.net import eventually

SEEDS = range(200)

pack = msgspec.msgpack.encode


class Node:
    """One node: what it keeps, and what it wants others to hear."""

    def __init__(self, guid: str, grace: float = 10.0) -> None:
        self.guid = guid
        self.box: dict = {}
        self.words = RetainedReplica(grace)

    def put(self, session: int, name: str, topic: str, time: int, number: int, flags: int) -> list[Word]:
        new = RetainedMessage(1, session, name, flags, topic, body_of(time, number, b"", b"x"))
        old = self.box.get(new.key)
        if (old is not None and old.version > new.version) or (flags & PIN and not self.words.pins.newer(new)):
            return []
        self.words.added(new)
        self.box[new.key] = new
        return [put(new)]

    def drop(self, key, when) -> list[Word]:
        gone = self.box.pop(key, None)
        if gone is None:
            return []
        return [self.words.removed(gone, max(when, gone.version))]

    def everything(self) -> list[Word]:
        return list(self.words.mine(list(self.box.values())))

    def hear(self, guid: str, packed: bytes) -> list[Word]:
        back: list[Word] = []
        for word in WORDS.read(packed):
            match word:
                case Put():
                    new = word.kept(1)
                    old = self.box.get(new.key)
                    if new.flags & PIN:
                        if self.words.pins.put(new):
                            self.box[new.key] = new
                        elif (later := self.words.pins.later(new)) is not None:
                            back.append(word_of(later))
                    elif self.words.received_post(guid, new.key) and (old is None or old.version < new.version):
                        self.box[new.key] = new
                case Drop():
                    pin = isinstance(word.owner, str)
                    if self.words.pins.put(word) if pin else self.words.lost(guid, word.key):
                        self.box.pop(word.key, None)
                case All():
                    for key in self.words.received_all(guid):
                        self.box.pop(key, None)
        return back


class Mesh:
    """Nodes whose links come and go; what is told arrives late, in order."""

    def __init__(self, seed: int, count: int) -> None:
        self.chance = Random(seed)
        self.nodes = [Node(f"n{number}") for number in range(count)]
        self.now = 0.0
        self.ways: dict[tuple[int, int], list[bytes]] = {}
        for one in range(count):
            for other in range(one):
                self.link(one, other)

    def link(self, one: int, other: int) -> None:
        for here, there in ((one, other), (other, one)):
            self.ways[here, there] = []
            self.nodes[here].words.link_opened(self.nodes[there].guid)
        for here, there in ((one, other), (other, one)):
            self.ways[here, there].append(pack(self.nodes[here].everything()))

    def cut(self, one: int, other: int) -> None:
        for here, there in ((one, other), (other, one)):
            if self.ways.pop((here, there), None) is not None:
                self.nodes[here].words.link_closed(self.nodes[there].guid, self.now)

    def tell(self, here: int, words: list[Word]) -> None:
        for (one, _), way in self.ways.items():
            if one == here and words:
                way.append(pack(words))

    def arrive(self) -> bool:
        full = [way for way, waiting in self.ways.items() if waiting]
        if not full:
            return False
        here, there = self.chance.choice(full)
        back = self.nodes[there].hear(self.nodes[here].guid, self.ways[here, there].pop(0))
        if back:
            self.ways[there, here].append(pack(back))
        return True

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for node in self.nodes:
            for key in node.words.expire(self.now):
                node.box.pop(key, None)

    def settle(self) -> None:
        count = len(self.nodes)
        for one in range(count):
            for other in range(one):
                if (one, other) not in self.ways:
                    self.link(one, other)
        while self.arrive():
            pass
        self.pass_time(100)
        while self.arrive():
            pass


@pytest.mark.parametrize("seed", SEEDS)
def test_nodes_agree_in_the_end(seed: int) -> None:
    mesh = Mesh(seed, 3)
    chance = mesh.chance
    pins: dict = {}
    posts: dict = {}
    for number in range(1, 61):
        here = chance.randrange(3)
        node = mesh.nodes[here]
        match chance.choice(["pin", "pin", "unpin", "post", "unpost", "cut", "link", "arrive", "arrive", "time"]):
            case "pin":
                name, topic = chance.choice("ab"), chance.choice("xy")
                # Clocks differ: the time of a later one may be an earlier one.
                new = node.put(7, name, topic, 1000 + number + chance.randrange(-3, 4), number, PIN)
                mesh.tell(here, new)
                for one in new:
                    key = (name, topic, b"")
                    pins[key] = max(pins.get(key, ((0, 0, 0), None)), (one.kept(1).version, number))
            case "unpin":
                found = [key for key in node.box if isinstance(key[0], str)]
                if found:
                    key = chance.choice(found)
                    gone = node.drop(key, (1000 + number, 7, number))
                    mesh.tell(here, gone)
                    for one in gone:
                        if one.version >= pins[key][0]:
                            pins[key] = one.version, None
            case "post":
                topic = chance.choice("xy")
                mesh.tell(here, node.put(100 + here, "", topic, 1000 + number, number, POST))
                posts[100 + here, topic, b""] = number
            case "unpost":
                found = [key for key in node.box if key[0] == 100 + here]
                if found:
                    key = chance.choice(found)
                    mesh.tell(here, node.drop(key, (1000 + number, 7, number)))
                    del posts[key]
            case "cut":
                mesh.cut(here, (here + 1) % 3)
            case "link":
                one, other = here, (here + 1) % 3
                if (one, other) not in mesh.ways:
                    mesh.link(one, other)
            case "arrive":
                mesh.arrive()
            case _:
                mesh.pass_time(chance.uniform(0, 15))
    mesh.settle()
    wanted = {key: one for key, (_, one) in pins.items() if one is not None} | posts
    for node in mesh.nodes:
        assert {key: one.number for key, one in node.box.items()} == wanted, node.guid


def test_posts_of_a_node_that_is_gone_are_withdrawn_after_the_time_of_grace() -> None:
    mesh = Mesh(1, 2)
    mesh.tell(0, mesh.nodes[0].put(5, "", "t", 1, 1, POST))
    while mesh.arrive():
        pass
    assert len(mesh.nodes[1].box) == 1
    mesh.cut(0, 1)
    mesh.pass_time(9)
    assert len(mesh.nodes[1].box) == 1
    assert mesh.nodes[1].words.deadline() == 10
    mesh.pass_time(1)
    assert mesh.nodes[1].box == {}


def test_a_client_that_moved_keeps_its_post() -> None:
    mesh = Mesh(1, 2)
    mesh.tell(0, mesh.nodes[0].put(5, "", "t", 1, 1, POST))
    while mesh.arrive():
        pass
    mesh.tell(1, mesh.nodes[1].put(5, "", "t", 1, 1, POST))  # posted again where it is now
    while mesh.arrive():
        pass
    mesh.tell(0, mesh.nodes[0].drop((5, "t", b""), (9, 9, 9)))  # its time of grace is over there
    while mesh.arrive():
        pass
    assert list(mesh.nodes[1].box) == [(5, "t", b"")]


@pytest.mark.parametrize(
    "bad",
    [
        b"\xc1",
        b"\x80",
        pack([(1, 0, "", POST, "t", bytes(16))]),
        pack([(1, 1, "", POST | PIN, "t", bytes(16))]),
        pack([(1, 1, "", POST, "t", bytes(15))]),
    ],
)
def test_what_is_none_is_refused(bad: bytes) -> None:
    with pytest.raises(Stranger):
        WORDS.read(bad)


def test_what_a_node_tells_late_takes_no_post_from_another():
    """A client has gone on to a second node; what the first one had told of it comes late, and then that it has it no more."""
    nodes = [Node(f"n{number}") for number in range(3)]
    first, second = (node.put(7, "c", "status", 1, 1, POST) for node in nodes[:2])
    far = nodes[2]
    far.words.link_opened("n0")
    far.words.link_opened("n1")
    far.hear("n1", pack([*second, All()]))
    far.hear("n0", pack(first))
    far.words.link_closed("n0", 0.0)
    far.words.link_opened("n0")
    far.hear("n0", pack([All()]))
    assert len(far.box) == 1
    far.hear("n1", pack(nodes[1].drop((7, "status", b""), (2, 7, 2))))
    assert not far.box


async def test_who_lacks_a_pin_gets_it_when_the_other_only_says_its_sum(cluster: Cluster):
    """A node that died while it told the others of a pin has told this one and not that one."""
    a, b = await cluster.several(2)
    lone = RetainedMessage(1, 7, "feed", PIN, "config/x", body_of(1_700, 1, b"", b"only here"))
    lone.dress({})
    a._hub.retained.put_remote(lone)
    retained = a._hub.peers.members._retained
    retained._replica.pins.put(lone)
    retained._broadcast(Sum(retained._replica.pins.digest))
    a._hub.flush()

    async def known():
        return lone.key in b._hub.retained.box

    await eventually(known)


async def test_a_pin_that_is_taken_back_where_nobody_has_heard_of_it_does_not_come_back(cluster: Cluster):
    a = await cluster.start()
    b = await cluster.start()
    feed, other = await cluster.client(a, name="feed"), await cluster.client(b, name="feed")
    await feed.pin("config/x", b"1")
    await other.unpin("config/x")  # they can't see each other yet
    c = await cluster.start(a, b)
    await cluster.whole()
    third = await cluster.client(c)

    async def gone():
        return not [kept for bus in (feed, other, third) for kept in await bus.kept("config/**")]

    await eventually(gone)
