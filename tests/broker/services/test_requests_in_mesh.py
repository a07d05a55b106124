"""Machines of shared services on several nodes, with all kinds of providers: each request ends exactly once."""

import random

import msgspec
import pytest

from busway.broker.flags import END, ERROR, PARTIAL
from busway.broker.services.actions import Answer, Ask, Call, CancelCall, Moved, Terms, Willing
from busway.broker.services.requests import SharedRequests
from busway.errors import Code

TOPIC = "sum"
MOODS = ("good", "parts", "fails", "silent", "unwilling", "mute")


class World:
    """Some nodes, each linked to each; a client of a node has a number below 100, the link to node n is 1000 + n."""

    def __init__(self, seed):
        self.dice = dice = random.Random(seed)
        self.now = 0.0
        self.nodes = [SharedRequests(each=2.0, size=10**6) for _ in range(dice.randint(2, 4))]
        self.ways = []  # what is on its way between nodes, or to and from clients, in order for each pair
        self.moods = {}
        self.answers = {}
        self.worked = []
        self.cut = set()
        for number, node in enumerate(self.nodes):
            for conn in range(dice.randint(0, 3)):
                asks = dice.random() < 0.5
                self.moods[number, conn] = dice.choice(MOODS)
                node.providers.join(conn, conn, TOPIC, f"{number}.{conn}", asks=asks)
                for other, far in enumerate(self.nodes):
                    if other != number:
                        far.providers.join_remote(1000 + number, conn, TOPIC, f"node {number}", asks=asks)

    def do(self, number, actions):
        node = self.nodes[number]
        for action in [*actions, *node.cancelled_calls()]:
            if isinstance(action, Answer) and action.conn < 1000:
                self.answers[number, action.number].append(action)
            else:
                self.ways.append((number, action.conn, action))

    def carry(self):
        """The next thing arrives, of one of the ways."""
        number, conn, _ = self.dice.choice(self.ways)
        at = next(i for i, way in enumerate(self.ways) if way[:2] == (number, conn))
        _, _, action = self.ways.pop(at)
        if conn >= 1000:
            self.between(number, conn - 1000, action)
        else:
            self.client(number, conn, action)

    def between(self, number, other, action):
        if frozenset((number, other)) in self.cut:
            return
        node, link, now = self.nodes[other], 1000 + number, self.now
        match action:
            case Ask(_, _, call, _, topic, frame):
                self.do(other, node.ask(link, call, topic, frame, now))
            case Call(_, _, call, _, topic, frame):
                gather = frame == b"all"
                self.do(other, node.request(link, call, topic, frame, now, gather=gather, remote=True))
            case Terms(_, call, each):
                node.terms(link, call, each, now)
            case Moved(_, call):
                node.moved(link, call, now)
            case CancelCall(_, call):
                node.cancel(link, call, now)
                self.do(other, [])
            case Willing(_, call, code):
                self.do(other, node.accepted(link, call, now, willing=code == Code.OK))
            case Answer(_, call, flags, code, fields, payload):
                self.do(other, node.answered(link, call, flags, code, fields, payload, now))

    def client(self, number, conn, action):
        node, now = self.nodes[number], self.now
        mood = self.moods.get((number, conn))
        if mood is None or mood == "mute":
            return
        if isinstance(action, Ask):
            self.do(number, node.accepted(conn, action.call, now, willing=mood != "unwilling"))
        elif mood != "silent":
            self.worked.append((number, conn))
            if mood == "parts":
                self.do(number, node.answered(conn, action.call, PARTIAL, 0, b"", b"part", now))
            flags, code = (ERROR, Code.HANDLER_ERROR) if mood in {"fails", "unwilling"} else (0, 0)
            self.do(number, node.answered(conn, action.call, flags, code, b"", f"{number}.{conn}".encode(), now))

    def request(self, number, count, gather):
        self.answers[number, count] = []
        limit = self.dice.choice([0.0, 0.0, 5.0])
        frame = b"all" if gather else b"one"
        self.do(number, self.nodes[number].request(99, count, TOPIC, frame, self.now, gather=gather, limit=limit))

    def die(self):
        """A client, or a link."""
        if self.moods and self.dice.random() < 0.5:
            number, conn = self.dice.choice(sorted(self.moods))
            del self.moods[number, conn]
            self.do(number, self.nodes[number].gone(conn, self.now))
            for other, node in enumerate(self.nodes):
                if other != number:
                    self.do(other, node.leave(1000 + number, conn, self.now))
        elif len(self.nodes) > 1:
            one, other = self.dice.sample(range(len(self.nodes)), 2)
            self.cut.add(frozenset((one, other)))
            self.do(one, self.nodes[one].gone(1000 + other, self.now))
            self.do(other, self.nodes[other].gone(1000 + one, self.now))

    def run(self, *, troubles):
        dice = self.dice
        for count in range(1, 21):
            self.request(dice.randrange(len(self.nodes)), count, dice.random() < 0.4)
            for _ in range(dice.randint(0, 12)):
                if self.ways:
                    self.carry()
                if dice.random() < 0.1:
                    self.pass_time(dice.uniform(0.0, 1.5))
                if troubles and dice.random() < 0.02:
                    self.die()
        for _ in range(200):
            while self.ways:
                self.carry()
            self.pass_time(1.0)

    def pass_time(self, seconds):
        self.now += seconds
        for number, node in enumerate(self.nodes):
            self.do(number, node.expire(self.now))


@pytest.mark.parametrize("seed", range(60))
def test_each_request_ends_once(seed):
    world = World(seed)
    world.run(troubles=seed % 2 == 1)
    for (number, count), answers in world.answers.items():
        ends = [one for one in answers if not one.flags & PARTIAL]
        assert len(ends) == 1, (number, count, answers)
        assert answers[-1] is ends[0]
    for node in world.nodes:
        assert (node._requests, node._attempts, node._bytes, node.pending) == ({}, {}, {}, 0)
        assert node.deadline() is None


@pytest.mark.parametrize("seed", range(30))
def test_all_who_can_answer_are_gathered_and_named_once(seed):
    world = World(seed)
    world.request(0, 1, gather=True)
    for _ in range(40):
        while world.ways:
            world.carry()
        world.pass_time(1.0)
    answers = world.answers[0, 1]
    good = [one for one in answers if not one.flags & (ERROR | END)]
    names = [msgspec.msgpack.decode(one.fields)[".id"] for one in good]
    wanted = []
    for (number, conn), mood in world.moods.items():
        wanted += [f"{number}.{conn}"] * {"good": 1, "parts": 2}.get(mood, 0)
    assert sorted(names) == sorted(wanted)
    failed = [msgspec.msgpack.decode(one.fields)[".id"] for one in answers if one.flags & ERROR and one.fields]
    assert len(failed) == len(set(failed))


@pytest.mark.parametrize("seed", range(100))
def test_one_who_can_answer_is_found_wherever_it_is(seed):
    world = World(seed)
    world.answers[0, 1] = []
    world.do(0, world.nodes[0].request(99, 1, TOPIC, b"one", 0.0))
    for _ in range(200):
        while world.ways:
            world.carry()
        world.pass_time(1.0)
    last = world.answers[0, 1][-1]
    assert not last.flags & PARTIAL
    assert bool(last.flags & ERROR) is not any(mood in {"good", "parts"} for mood in world.moods.values())
    local = [key for key, mood in world.moods.items() if key[0] == 0 and mood in {"good", "parts"}]
    good = [key for key in world.worked if world.moods[key] in {"good", "parts"}]
    assert len(good) == (not last.flags & ERROR), "one, and nobody else after it"
    assert not local or good[0] in local, "clients of the same node first"
