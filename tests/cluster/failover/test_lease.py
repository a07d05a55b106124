"""Who hands out of the channels of a node that may be gone: never two at a time, and somebody as soon as that can be."""

import random
from copy import deepcopy

import pytest

from busway.cluster.failover.lease import Lease


def test_a_mirror_takes_over_when_most_miss_the_node() -> None:
    turn = Lease(owner=False, has=False, patience=5.0)
    assert not turn.look(0.0, linked=2, denied=1, known=3, other=True)
    assert not turn.look(1.0, linked=1, denied=1, known=3, other=False)
    assert turn.deadline() is None, "only this one misses it"
    assert not turn.look(2.0, linked=1, denied=2, known=3, other=False)
    assert turn.deadline() == 12.0
    assert not turn.look(11.9, linked=1, denied=2, known=3, other=False)
    assert turn.look(12.0, linked=1, denied=2, known=3, other=False)
    assert turn.has
    assert turn.hand_over()
    assert not turn.has
    assert not turn.hand_over()


def test_a_node_without_the_others_gives_up_its_turn_first() -> None:
    turn = Lease(owner=True, has=True, patience=5.0)
    assert not turn.look(0.0, linked=1, denied=1, known=3, other=False)
    assert not turn.look(1.0, linked=0, denied=1, known=3, other=False)
    assert turn.deadline() == 6.0
    assert not turn.look(5.9, linked=0, denied=1, known=3, other=False)
    assert turn.look(6.0, linked=0, denied=1, known=3, other=False)
    assert not turn.has
    assert not turn.look(7.0, linked=2, denied=1, known=3, other=False), "it has to be handed over"
    turn.handed_over()
    assert turn.has


def test_what_is_due_happens_when_it_is_due() -> None:
    """Not a rounding error later: who looks at that time and sees nothing would look again and again."""
    owner, mirror = Lease(owner=True, has=True, patience=5.0), Lease(owner=False, has=False, patience=5.0)
    assert not owner.look(3.986223196077984, linked=0, denied=1, known=3, other=False)
    assert (due := owner.deadline()) is not None
    assert owner.look(due, linked=0, denied=1, known=3, other=False)
    assert not mirror.look(6.006223196077984, linked=1, denied=2, known=3, other=False)
    assert (due := mirror.deadline()) is not None
    assert mirror.look(due, linked=1, denied=2, known=3, other=False)


def test_of_two_nodes_only_the_owner_goes_on() -> None:
    owner, mirror = Lease(owner=True, has=True), Lease(owner=False, has=False)
    for now in range(100):
        owner.look(now, linked=0, denied=1, known=2, other=False)
        mirror.look(now, linked=0, denied=1, known=2, other=False)
    assert owner.has
    assert not mirror.has


def test_a_node_whose_mirror_is_gone_gets_its_turn_back_from_the_others() -> None:
    turn = Lease(owner=True, has=False, patience=5.0)
    for now in range(10):
        turn.look(now, linked=1, denied=2, known=3, other=False)
        assert not turn.has
    assert turn.look(10.0, linked=1, denied=2, known=3, other=False)


def test_a_node_that_stops_leaves_nothing_to_wait_for() -> None:
    turn = Lease(owner=False, has=False, patience=5.0)
    turn.given()
    assert not turn.look(0.0, linked=0, denied=1, known=3, other=False), "most have to miss it, all the same"
    assert turn.look(0.1, linked=1, denied=2, known=3, other=False)
    assert turn.hand_over()
    turn.look(1.0, linked=1, denied=2, known=3, other=False)
    assert not turn.look(10.9, linked=1, denied=2, known=3, other=False), "that counts once"
    assert turn.look(11.0, linked=1, denied=2, known=3, other=False)


def test_one_that_has_slept_is_not_sure_of_its_turn() -> None:
    turn = Lease(owner=True, has=True, patience=5.0)
    turn.look(0.0, linked=2, denied=3, known=3, other=True)
    assert turn.sure(10.0)
    assert not turn.sure(10.1)
    assert turn.look(11.0, linked=2, denied=3, known=3, other=True)
    assert not turn.has
    turn.handed_over()
    assert turn.has
    assert turn.sure(12.0)


def test_a_mirror_that_has_slept_begins_to_wait_anew() -> None:
    turn = Lease(owner=False, has=False, patience=5.0)
    turn.given()
    assert turn.look(0.0, linked=1, denied=2, known=3, other=False)
    assert turn.look(60.0, linked=1, denied=2, known=3, other=False), "what it heard of the others is old"
    assert not turn.has
    assert not turn.look(69.0, linked=1, denied=2, known=3, other=False)
    assert turn.look(70.0, linked=1, denied=2, known=3, other=False)


def test_a_mirror_that_has_slept_while_it_waited_waits_anew() -> None:
    """Whoever missed the node before may see it since."""
    turn = Lease(owner=False, has=False, patience=5.0)
    turn.look(0.0, linked=1, denied=2, known=3, other=False)
    turn.slept()
    assert not turn.look(60.0, linked=1, denied=2, known=3, other=False), "by what it heard before"
    assert turn.deadline() == 70.0
    turn.given()
    turn.slept()
    assert not turn.look(61.0, linked=1, denied=2, known=3, other=False), "the node that stopped may be back"
    assert turn.look(71.0, linked=1, denied=2, known=3, other=False)
    turn.slept()
    assert turn.has, "what it has is judged by how long it slept"


class Side:
    """A node or its mirror: what it sees of links is late, and what it hears of others later."""

    def __init__(self, me, other, *, owner):
        self.me, self.other = me, other
        self.turn = Lease(owner=owner, has=owner, patience=5.0)

    def look(self, world):
        linked = world.seen(self.me)
        denied = 1 + sum(self.other not in world.told(self.me, one) for one in linked if one != self.other)
        other = self.other in linked
        denied = denied if not other else 0
        self.turn.look(world.now, linked=len(linked), denied=denied, known=world.size, other=other)


class World:
    """Nodes whose links come and go by chance; a change is seen within 2 seconds, and told within 4."""

    def __init__(self, seed, size):
        self.chance = random.Random(seed)
        self.now, self.size = 0.0, size
        full = {one: {other for other in range(size) if other != one} for one in range(size)}
        self.history = [(0.0, full)]
        self.delays = [self.chance.uniform(0.0, 2.0) for _ in range(size)]
        self.owner, self.mirror = Side(0, 1, owner=True), Side(1, 0, owner=False)
        self.taken = 0

    def at(self, when):
        return next(links for since, links in reversed(self.history) if since <= max(when, 0.0))

    def seen(self, one):
        return self.at(self.now - self.delays[one])[one]

    def told(self, one, other):
        """What a node says of its own links."""
        return self.at(self.now - self.delays[other] - self.delays[one])[other]

    def change(self):
        links = deepcopy(self.history[-1][1])
        if self.chance.random() < 0.3:  # all is well
            links = {one: {other for other in range(self.size) if other != one} for one in range(self.size)}
        else:
            side = {one for one in range(self.size) if self.chance.random() < 0.4}
            for one in range(self.size):
                links[one] = {other for other in range(self.size) if other != one and (one in side) == (other in side)}
        self.history.append((self.now, links))

    def run(self, seconds):
        next_change = 0.0
        while self.now < seconds:
            self.now += 0.1
            if self.now >= next_change:
                self.change()
                next_change = self.now + self.chance.choice([1.0, 3.0, 8.0, 15.0, 40.0])
            for side in (self.owner, self.mirror):
                side.look(self)
            assert not (self.owner.turn.has and self.mirror.turn.has)
            self.taken += self.mirror.turn.has
            if self.mirror.me in self.at(self.now)[self.owner.me]:  # what they say is not lost
                self.mirror.turn.hand_over()
                self.owner.turn.handed_over()


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7])
def test_no_two_have_the_turn_whatever_happens_to_links(size) -> None:
    taken = 0
    for seed in range(15):
        world = World(seed, size)
        world.run(200.0)
        taken += world.taken
    assert (taken > 0) is (size > 2)
