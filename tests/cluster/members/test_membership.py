"""Membership: machines without sockets and clocks, on a network that delays, cuts and loses messages."""

import pytest

from busway.cluster.members.actions import Admit, Notice, Probe, Refuse
from busway.cluster.members.membership import Membership
from busway.cluster.node import Node, Sighting
from busway.errors import Code
from tests.support.membership_world import Machine, World

SEEDS = range(25)


def kinds(machine: Machine) -> list[str]:
    return [notice.kind for notice in machine.notices]


def of(machine: Machine, kind: str) -> list[Notice]:
    return [notice for notice in machine.notices if notice.kind == kind]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_comes_up_announces_itself_to_any_one_and_is_linked_to_all(seed):
    world = World(seed)
    world.start("a", "")
    world.move_on(world.chance.random())
    for name in "bcdef"[: world.chance.randint(1, 5)]:
        world.start(name, f"{world.chance.choice([m.node.name for m in world.living()])}:1")
        world.move_on(world.chance.choice([0, 0.05, 3]))
    world.move_on(60)
    world.assert_whole()


@pytest.mark.parametrize("seed", SEEDS)
def test_all_that_dial_each_other_at_once_have_one_link_each(seed):
    world = World(seed)
    for name in "abcd":
        world.start(name, "a:1,b:1,c:1,d:1")  # the list names the server itself
    world.move_on(60)
    world.assert_whole()
    dials = world.dials
    world.move_on(3600)
    assert world.dials == dials, "a whole mesh dials nobody"


@pytest.mark.parametrize("seed", SEEDS)
def test_crashes_restarts_and_cuts_heal(seed):
    world = World(seed)
    servers = "a:1,b:1,c:1,d:1"
    for name in "abcd":
        world.start(name, servers)
    for _ in range(8):
        world.move_on(world.chance.uniform(0, 10))
        machine = world.chance.choice(list(world.living()))
        other = world.chance.choice(list(world.living()))
        match world.chance.choice(["restart", "power", "cut", "one way", "heal"]):
            case "restart":
                world.kill(machine)
                world.start(machine.node.name, servers, guid=machine.node.guid)
            case "power":
                world.kill(machine, silent=True)
                world.start(machine.node.name, servers, guid=machine.node.guid, skew=-5000)
            case "cut":
                world.cut |= {
                    (machine.node.addresses[0], other.node.addresses[0]),
                    (other.node.addresses[0], machine.node.addresses[0]),
                }
            case "one way":
                world.cut.add((machine.node.addresses[0], other.node.addresses[0]))
            case _:
                world.cut.clear()
    world.cut.clear()
    world.move_on(120)
    # A link on which nothing is said any more is found by heartbeats, which the probes of another's coming stand for here.
    world.assert_whole()
    assert not any(of(machine, "conflict") for machine in world.living()), "a node that was started again is no copy"


def test_nodes_of_another_cluster_on_the_same_network_never_mix():
    world = World(1)
    one = world.start("a", "a:1,b:1,c:1", cluster="blue")
    two = world.start("b", "a:1,b:1,c:1", cluster="green")
    three = world.start("c", "a:1,b:1,c:1", cluster="blue")
    world.move_on(60)
    assert one.links == {three.node.guid}
    assert three.links == {one.node.guid}
    assert two.links == set()
    assert any("this is the cluster 'green'" in notice.text for notice in of(one, "refused"))
    assert {node.guid for node in one.members.known} == {three.node.guid}
    dials = world.dials
    world.move_on(60)
    assert world.dials - dials < 12, "who said no is asked rarely"
    assert len(of(one, "refused")) <= 4, "and people are told once a minute: of whom it dials and of who comes"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_of_a_node_is_refused_and_told_and_the_first_one_stays(seed):
    world = World(seed)
    servers = "a:1,b:1,c:1,d:1,x:1"
    for name in "abcd":
        world.start(name, servers)
    world.move_on(60)
    first = world.chance.choice(list(world.living()))
    copy = world.start("x", servers, guid=first.node.guid)
    world.move_on(60)
    copy.running = False  # so that only the others are looked at
    world.assert_whole()
    copy.running = True
    assert copy.links == set()
    assert "conflict" in kinds(copy)
    assert any(of(machine, "conflict") for machine in world.living() if machine is not copy)
    assert any("copied data folder" in notice.text for notice in of(copy, "conflict"))


@pytest.mark.parametrize("seed", SEEDS)
def test_copies_that_meet_only_through_others_are_found(seed):
    world = World(seed)
    a = world.start("a", "")
    b = world.start("b", "")
    first = world.start("x", "a:1")
    world.move_on(30)
    copy = world.start("y", "b:1", guid=first.node.guid)
    world.move_on(30)
    assert (a.links, b.links) == ({first.node.guid}, {first.node.guid})
    # Now a and b learn of each other, and of their two nodes with one guid.
    third = world.start("c", "a:1,b:1")
    world.move_on(120)
    assert first.links == {one.node.guid for one in (a, b, third)}
    assert copy.links == set()
    assert any(of(machine, "conflict") for machine in (a, b, third))


class Judge:
    """A node that is linked to one that tells of others (1), and to the second life of a node (2) of which the first was killed."""

    def __init__(self) -> None:
        me, teller, self.killed, self.again = (
            Node(str(guid) * 32, incarnation, "test", f"n{guid}", (f"tcp://n{guid}:1",), since)
            for guid, incarnation, since in ((1, 1, 1), (2, 2, 2), (3, 3, 3), (3, 4, 9))
        )
        self.members = Membership(me, chance=lambda: 0.5)
        self.members.start(0.0)
        for conn, node in ((1, teller), (2, self.again)):
            self.members.greeted(conn, node, 1.0)
            self.members.proved(conn, 1.0)
        self.members.take()

    def accused(self) -> None:
        """The other one has heard the first: an answer that was on its way when it was killed."""
        self.members.heard([Sighting(self.killed, linked=True, sure=True)], 2.0)
        assert Probe(2) in self.members.take()

    def gone(self) -> None:
        """The end of that connection has come, too."""
        self.members.heard([Sighting(self.killed, linked=False)], 3.0)


def test_a_node_that_was_started_again_is_let_in_when_the_one_that_was_there_first_is_seen_to_be_gone():
    judge = Judge()
    judge.accused()
    judge.members.alive(2, 2.5)
    judge.members.greeted(3, judge.again, 2.6)
    assert [one.code for one in judge.members.take() if isinstance(one, Refuse)] == [Code.DUPLICATE_NODE] * 2
    judge.gone()
    judge.members.greeted(4, judge.again, 4.0)
    assert Admit(4, judge.again) in judge.members.take()


def test_who_is_gone_by_the_time_of_the_verdict_accuses_nobody():
    judge = Judge()
    judge.accused()
    judge.gone()
    judge.members.alive(2, 3.5)
    assert not [one for one in judge.members.take() if isinstance(one, Refuse | Notice)]
    assert judge.again.guid in judge.members.linked


def test_a_host_of_the_list_that_is_dead_is_tried_for_ever_and_harms_nobody():
    world = World(3)
    for name in "ab":
        world.start(name, "a:1,b:1,gone:1")
    world.move_on(60)
    world.assert_whole()
    before = world.dials
    world.move_on(3600)
    assert world.dials - before > 1000
    world.start("gone", "")
    world.move_on(60)
    world.assert_whole()


def test_a_node_that_was_told_of_and_is_gone_for_long_is_forgotten():
    world = World(4)
    a = world.start("a", "")
    b = world.start("b", "a:1")
    c = world.start("c", "a:1")
    world.move_on(30)
    world.kill(c)
    world.move_on(500)
    assert c.node.guid in {node.guid for node in b.members.known}
    world.move_on(200)
    for machine in (a, b):
        assert c.node.guid not in {node.guid for node in machine.members.known}
        assert [notice.guid for notice in of(machine, "forgotten")] == [c.node.guid]
    dials = world.dials
    world.move_on(3600)
    assert world.dials == dials
    world.assert_whole()


def flap(world: World, one: Machine, other: Machine) -> None:
    """The two lose each other, and find each other again."""
    ways = {(a.node.addresses[0], b.node.addresses[0]) for a, b in ((one, other), (other, one))}
    world.cut |= ways
    world.move_on(20)
    world.cut -= ways
    world.move_on(20)


@pytest.mark.parametrize("code", [Code.OK, Code.GOING_AWAY])
def test_what_others_tell_of_a_node_that_is_gone_makes_it_no_younger(code):
    world = World(6)
    a, b, c = world.start("a", ""), world.start("b", "a:1"), world.start("c", "a:1")
    world.move_on(30)
    world.kill(c, code=code)
    for _ in range(12):
        flap(world, a, b)
    late = world.start("d", "a:1")
    world.move_on(20)
    assert c.node.guid in {node.guid for node in late.members.known}
    for _ in range(4):
        flap(world, a, b)
    for machine in (a, b, late):
        assert c.node.guid not in {node.guid for node in machine.members.known}
    world.assert_whole()


def test_who_was_not_there_hears_that_a_node_stopped_until_it_is_back():
    world = World(7)
    a, b, c = world.start("a", ""), world.start("b", "a:1"), world.start("c", "a:1,b:1")
    world.move_on(30)
    ways = {(one.node.addresses[0], other.node.addresses[0]) for one, other in ((b, c), (c, b))}
    world.cut |= ways
    world.move_on(30)
    world.kill(c, code=Code.GOING_AWAY)
    world.move_on(10)
    late = world.start("d", "a:1")
    world.move_on(10)
    for machine in (a, b, late):
        assert machine.members.stopped == {c.node.guid}
        assert machine.left == [c.node.guid]
    world.start("c", "a:1", guid=c.node.guid)
    world.move_on(30)
    for machine in (a, b, late):
        assert not machine.members.stopped
    world.cut.clear()
    world.move_on(60)
    world.assert_whole()


def test_what_happens_is_told():
    world = World(5)
    a = world.start("a", "")
    b = world.start("b", "a:1")
    world.move_on(10)
    world.kill(b)
    world.move_on(10)
    assert [(notice.kind, notice.name) for notice in a.notices] == [("up", "b"), ("down", "b")]


def test_who_waits_for_a_link_that_is_not_open_yet_hears_of_its_end():
    """Connections that came while two nodes were about to be linked are closed when they are, and the link is not."""
    me, old, new = (Node(guid * 32, number, "test") for guid, number in (("1", 1), ("2", 2), ("2", 3)))
    members = Membership(me, [], chance=lambda: 0.5)
    members.greeted(1, new, 0.0)
    members.greeted(2, old, 0.1)
    members.take()
    members.proved(1, 1.0)
    assert Probe(1) in members.take()
    members.alive(1, 1.1)
    assert [action.conn for action in members.take() if isinstance(action, Refuse)] == [2]
    members.tick(60.0)
    assert members.linked == {new.guid: 1}


def test_a_server_of_the_list_that_is_not_there_is_told_once():
    world = World(1)
    a = world.start("a", "a:1,b:1,dead:1")
    world.start("b", "")
    world.move_on(29)
    assert not of(a, "missing")
    world.move_on(600)
    (told,) = of(a, "missing")
    assert (told.guid, told.name, told.address) == ("", "", "tcp://dead:1")
    assert "dead" not in told.text, "the address is told once"
    assert "in the list" in told.text


def test_a_link_that_never_lasts_is_not_dialled_all_the_time():
    """As one over which something is said that the other side does not take."""
    world = World(3)
    a, b = world.start("a", ""), world.start("b", "a:1")
    for _ in range(600):
        world.move_on(0.1)
        for machine in (a, b):
            for conn in list(machine.members.linked.values()):
                world.close(machine, conn)
    assert world.dials < 60, "every five seconds from each side, after the first few"
    dials = world.dials
    world.move_on(30)
    world.assert_whole()
    world.move_on(600)
    # It has lasted now: the schedule begins anew.
    world.kill(b)
    world.start("b", "a:1", guid=b.node.guid)
    world.move_on(3)
    world.assert_whole()
    assert world.dials > dials
