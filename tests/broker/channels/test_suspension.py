"""A suspended channel merges the progress that another broker made meanwhile, and keeps its own."""

import random
from copy import deepcopy

from busway.broker.channels.state.actions import Deliver, Read, Write
from busway.broker.channels.state.channel import Channel
from busway.broker.channels.state.progress import (
    ChannelConfig,
    ChannelState,
    Created,
    Delivered,
    Done,
    Sought,
    apply,
    rebuild,
)

ME = (1, 1)
SIZE = 40


class Driver:
    """A channel over a stream with so many messages, its journal, and what its consumer has been given."""

    def __init__(self, state=None, size=SIZE, window=SIZE):
        self.journal = {} if state is None else {"c": deepcopy(state)}
        state = state or ChannelState("c", ChannelConfig(lease=0.0, max_deliveries=0), 1, 0)
        apply(self.journal, Created("c", state.epoch, state.floor, state.config)) if not self.journal else None
        self.size = size
        self.channel = Channel(deepcopy(state))
        self.given = []
        self.do(self.channel.open(0, size, 0.0))
        self.do(self.channel.join(ME, window, 0.0))

    def do(self, actions):
        todo = list(actions)
        while todo:
            action = todo.pop(0)
            if isinstance(action, Write):
                apply(self.journal, action.entry)
            elif isinstance(action, Read):
                spans = [(action.from_, self.size - action.from_)]
                todo += self.channel.found(action.ticket, spans, self.size, 0.0)
            elif isinstance(action, Deliver):
                self.given += [one for start, count in action.spans for one in range(start, start + count)]

    def ack(self, *offsets):
        self.do(self.channel.acks.ack(ME, [(one, 1) for one in offsets], 0.0))

    def absorb(self, state):
        self.do(self.channel.absorb(state, 0.0))

    def wake(self):
        self.given = []
        self.do(self.channel.unsuspend(0.0))
        return self.given


def after(state, *entries):
    states = {"c": deepcopy(state)}
    for entry in entries:
        apply(states, entry)
    return states["c"]


def test_one_that_rests_hands_out_nothing_and_then_everything_that_is_left():
    one = Driver(window=10)
    assert one.given == list(range(10))
    one.ack(0, 1)
    one.channel.suspend()
    one.given = []
    one.do(one.channel.join(ME, 20, 0.0))
    one.do(one.channel.take(ME, 5, 3, 0.0, 0.0))
    assert not one.given
    assert not one.channel.more
    assert one.channel.count_in_flight(ME) == 10, "its consumer has them still"
    assert one.wake() == list(range(12, 22))
    one.ack(2, 9)
    assert one.journal["c"].floor == 3, "and may say that they are done"


def test_what_its_consumer_was_refused_is_handed_out_again():
    one = Driver(window=10)
    one.channel.suspend()
    one.channel.revoke(ME, [(2, 3), (7, 1)])
    one.channel.revoke((2, 2), [(0, 10)])
    assert one.channel.count_in_flight(ME) == 6
    assert not one.channel.more
    assert one.wake() == [2, 3, 4, 7]


def test_whose_consumer_goes_while_it_rests_is_handed_out_again_and_dies_no_earlier():
    one = Driver(ChannelState("c", ChannelConfig(lease=5.0, max_deliveries=1, backoff=()), 1, 0), size=4, window=4)
    one.channel.suspend()
    one.do(one.channel.expire(5.0))
    assert not one.given[4:]
    assert one.channel.count_in_flight(ME) == 0
    assert one.wake() == [0, 1, 2, 3]


def test_what_was_done_elsewhere_is_done():
    one = Driver(window=10)
    one.ack(3)
    state = deepcopy(one.journal["c"])
    one.ack(5)  # the other one never hears of this
    one.channel.suspend()
    one.absorb(after(state, Done("c", 1, 2, ((8, 1), (20, 5)))))
    assert one.journal["c"].floor == 2
    one.do(one.channel.join(ME, SIZE, 0.0))
    assert one.channel.count_in_flight(ME) == 7, "2, 4, 6, 7, 9, 10 and 11"
    assert one.wake() == [two for two in range(12, SIZE) if two not in range(20, 25)]


def test_how_often_something_was_handed_out_elsewhere_counts():
    config = ChannelConfig(lease=0.0, max_deliveries=3)
    one = Driver(ChannelState("c", config, 1, 0), size=3)
    one.channel.suspend()
    one.absorb(after(one.journal["c"], Delivered("c", 1, 2, ((1, 1),))))
    assert {run.start: run.deliveries for run in one.channel.in_flight} == {0: 1, 1: 2, 2: 1}


def test_a_place_that_it_was_put_to_elsewhere_counts():
    one = Driver(window=10)
    one.ack(*range(10))
    one.channel.suspend()
    one.absorb(after(one.journal["c"], Sought("c", 2, 5), Done("c", 2, 6)))
    assert (one.channel.epoch, one.channel.floor) == (2, 6)
    assert one.wake()[:3] == [6, 7, 8]


def test_a_place_that_the_other_did_not_hear_of_stays():
    one = Driver(window=10)
    old = deepcopy(one.journal["c"])
    one.do(one.channel.seek(30, 0.0))
    one.channel.suspend()
    one.absorb(after(old, Done("c", 1, 35)))
    assert (one.channel.floor, one.channel.count_in_flight(ME), one.wake()) == (30, 10, [])


def test_by_chance():
    chance = random.Random(8)
    for _ in range(400):
        one = Driver(window=chance.randint(1, SIZE))
        done = set(chance.sample(one.given, chance.randint(0, len(one.given))))
        one.ack(*done)
        heard = deepcopy(one.journal["c"])
        more = set(chance.sample(one.given, chance.randint(0, len(one.given)))) - done
        one.ack(*more)
        elsewhere = Driver(heard)
        there = set(chance.sample(elsewhere.given, chance.randint(0, len(elsewhere.given))))
        elsewhere.ack(*there)
        one.channel.suspend()
        one.absorb(elsewhere.journal["c"])
        every = done | more | there
        assert rebuild(one.journal["c"].entries())["c"].floor == min(set(range(SIZE + 1)) - every)
        has = set(one.given) - every
        assert one.channel.count_in_flight(ME) == len(has)
        one.do(one.channel.join(ME, SIZE, 0.0))
        assert one.wake() == [two for two in range(SIZE) if two not in every | has]
        assert Driver(one.journal["c"]).given == sorted({*one.given} | has), "after another start also what it had"


def test_of_a_copy_that_lacks_the_end_nothing_is_concluded():
    state = after(ChannelState("c", ChannelConfig(), 1, 0), Done("c", 1, 12, ((15, 2),)))
    channel = Channel(state)
    assert channel.open(0, 10, 0.0, copy=True) == []
    assert (channel.epoch, channel.floor) == (1, 12)


def test_one_that_was_made_anew_since_it_was_lost_is_where_it_was():
    """Where it began in the meantime says nothing; what was done then is done."""
    chance = random.Random(10)
    config = ChannelConfig(lease=0.0, max_deliveries=0)
    for _ in range(600):
        begin, other = chance.randint(0, SIZE), chance.randint(0, SIZE)
        known = Driver(ChannelState("c", config, 5, begin))
        known.ack(*(done := set(chance.sample(known.given, chance.randint(0, len(known.given))))))
        here = Driver(ChannelState("c", config, 1000, other), window=chance.randint(1, SIZE))
        here.ack(*(since := set(chance.sample(here.given, chance.randint(0, len(here.given))))))
        here.channel.suspend()
        here.do(here.channel.recover(known.journal["c"], 0.0))
        assert here.channel.epoch == 5, "so another one that knows it, too, adds what it knows"
        left = sorted(set(range(begin, SIZE)) - done - since)
        here.do(here.channel.join(ME, SIZE, 0.0))
        assert here.wake() == left
        assert Driver(rebuild(here.journal["c"].entries())["c"]).given == left, "after another start"


def test_one_that_somebody_has_moved_since_it_was_lost_stays_there():
    known = after(ChannelState("c", ChannelConfig(), 5, 0), Done("c", 5, 30))
    here = Driver()
    here.do(here.channel.seek(10, 0.0))
    here.channel.suspend()
    here.do(here.channel.recover(known, 0.0))
    assert here.channel.floor == 10


def test_one_that_waited_for_the_end_of_its_stream_goes_back_if_that_does_not_come():
    chance = random.Random(11)
    config = ChannelConfig(lease=0.0, max_deliveries=0)
    for _ in range(600):
        before = Driver(ChannelState("c", config, 5, 0))
        before.ack(*(done := set(chance.sample(range(SIZE), chance.randint(0, SIZE)))))
        end = chance.randint(0, SIZE)
        here = Driver(size=end, window=1)
        here.journal, here.given = {"c": before.journal["c"].copy()}, []
        here.channel = Channel(before.journal["c"])
        here.do(here.channel.open(0, end, 0.0, copy=True))
        here.do(here.channel.join(ME, chance.randint(1, SIZE), 0.0))
        got = [one for one in here.given if one < end]
        here.ack(*(since := set(chance.sample(got, chance.randint(0, len(got))))))
        here.do(here.channel.end_confirmed(end, 0.0))
        left = sorted({*range(end)} - done - since | {*range(end, SIZE)})
        again = Driver(rebuild(here.journal["c"].entries())["c"])
        assert again.given == left, "other messages come where the old ones were"
