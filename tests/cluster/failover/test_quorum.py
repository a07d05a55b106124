"""Which nodes count for a majority: not those that said that they stop, and never so that both parts of a cluster have one."""

import random

import pytest

from busway.cluster.failover.quorum import Quorum


def test_a_node_that_stops_counts_no_more_until_it_comes_back() -> None:
    count = Quorum("a", most=True)
    for guid in "bcde":
        count.came(guid, 1, anew=False)
    assert (count.here, len(count.nodes)) == (5, 5)
    for guid in "cde":
        count.left(guid)
    assert (count.here, len(count.nodes)) == (2, 2)
    count.went("b")
    assert (count.here, len(count.nodes)) == (1, 2), "that one was lost without a word"
    assert not count.enough
    count.came("b", 1, anew=False)
    count.came("c", 2, anew=False)
    assert (count.here, len(count.nodes)) == (3, 3)


def test_the_smaller_part_does_not_grow_by_those_that_come() -> None:
    count = Quorum("a", most=False)
    for guid in "bc":
        count.came(guid, 1, anew=False)
    for guid in "bc":
        count.went(guid)
    assert not count.enough
    count.came("d", 1, anew=False)
    count.came("e", 1, anew=False)
    assert not count.enough, "b and c don't count them"
    count.came("b", 1, anew=False)
    assert count.enough
    assert (count.here, len(count.nodes)) == (4, 5)


def test_one_that_had_stopped_unheard_is_late() -> None:
    """The larger part has heard that it stops, and goes on without it."""
    count = Quorum("a", "abcd", most=False)
    count.came("b", 2, anew=True)
    assert not count.enough
    count.came("c", 1, anew=False)
    assert count.enough
    assert (count.here, len(count.nodes)) == (3, 4)
    count.went("c")
    count.went("b")
    count.came("b", 2, anew=True)
    assert count.enough, "that is known already of this one"


class World:
    """Nodes that come, go, stop and are cut off from each other; 0 has the mirror 1."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.sides: dict[int, int] = dict.fromkeys(range(self.chance.randint(3, 6)), 0)
        self.incarnations = dict.fromkeys(self.sides, 1)
        self.up: dict[int, dict[bool, Quorum]] = {}
        self.known: dict[int, set[str]] = {}
        self.left: set[int] = set()
        self.ready = False
        self.taken = 0
        for one in self.sides:
            self.start(one)

    def linked(self, one: int) -> list[int]:
        return [other for other in self.up if other != one and self.sides[other] == self.sides[one]]

    def start(self, one: int) -> None:
        # Only the node with a mirror remembers whom it knew.
        known = self.known.get(one, set()) if one == 0 else set()
        self.incarnations[one] += 1
        self.up[one] = {most: Quorum(str(one), known, most=most) for most in (False, True)}
        for other in self.linked(one):
            self.link(one, other)

    def link(self, one: int, other: int) -> None:
        if 1 in self.up:
            self.up[1][True].keep("0")
        for here, there in ((one, other), (other, one)):
            for count in self.up[here].values():
                count.came(str(there), self.incarnations[there], anew=there in self.left)

    def end(self, one: int, *, stops: bool) -> None:
        for other in self.linked(one):
            for count in self.up[other].values():
                (count.left if stops else count.went)(str(one))
        self.known[one] = self.up.pop(one)[False].known
        (self.left.add if stops else self.left.discard)(one)
        if one == 1:
            self.ready = False

    def cut(self) -> None:
        whole = self.chance.random() < 0.3
        before = {one: set(self.linked(one)) for one in self.up}
        for one in self.sides:
            self.sides[one] = 0 if whole else self.chance.randrange(2)
        for one in self.up:
            now = set(self.linked(one))
            for other in before[one] - now:
                for count in self.up[one].values():
                    count.went(str(other))
            for other in now - before[one]:
                if one < other:
                    self.link(one, other)

    def step(self) -> None:
        match self.chance.randrange(5):
            case 0 | 1:
                self.cut()
            case 2 if self.up:
                self.end(self.chance.choice(list(self.up)), stops=True)
            case 3 if self.up and self.chance.random() < 0.5:
                self.end(self.chance.choice(list(self.up)), stops=False)
            case _:
                if down := [one for one in self.sides if one not in self.up]:
                    self.start(self.chance.choice(down))

        for _ in range(2):
            for one, counts in self.up.items():
                said = counts[False].met | counts[True].met
                for other in self.linked(one):
                    for count in self.up[other].values():
                        count.told(str(one), said)
        if 0 in self.up and 1 in self.linked(0):
            # A mirror takes over only for a node that counted it.
            self.ready = 1 in self.up and "1" in self.up[0][False].nodes

    def check(self) -> None:
        if not self.ready or (0 in self.up and 0 in self.linked(1)):
            return
        votes = self.up[1][True]
        takes = 2 * votes.here > len(votes.nodes)
        self.taken += takes
        assert not (takes and 0 in self.up and self.up[0][False].enough)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_no_two_parts_have_a_majority_whoever_stops_and_comes_back(first: int) -> None:
    taken = 0
    for seed in range(first, first + 20):
        world = World(seed)
        for _ in range(200):
            world.step()
            world.check()
        taken += world.taken
    assert taken
