"""An acknowledgement is confirmed when every mirror that may be promoted has recorded it."""

import asyncio

import pytest

from busway.cluster.replication.progress_state import ProgressState
from busway.errors import StoreFailed

PATIENCE = 2.0
LONG = ProgressState(PATIENCE).wait


@pytest.fixture
async def hearing():
    return ProgressState(PATIENCE)


def note(hearing, serial, now=0.0):
    return hearing.note(serial, now, asyncio.get_running_loop().create_future)


async def test_without_a_mirror_nobody_waits(hearing):
    assert note(hearing, 1) is None
    assert hearing.deadline() is None


async def test_one_that_has_heard_everything_is_waited_for(hearing):
    hearing.heard("m", 1)
    assert note(hearing, 2) is None, "it has not heard everything yet"
    hearing.heard("m", 3, all_=True)
    four, five = note(hearing, 4), note(hearing, 5)
    hearing.heard("m", 4)
    assert four.done()
    assert not five.done()
    hearing.heard("m", 5)
    assert five.done()


async def test_of_two_both_are_waited_for(hearing):
    for mirror in "mn":
        hearing.heard(mirror, 1, all_=True)
    told = note(hearing, 2)
    hearing.heard("m", 2)
    assert not told.done()
    hearing.heard("n", 2)
    assert told.done()


async def test_one_that_is_lost_is_waited_for_until_it_must_know_that(hearing):
    hearing.heard("m", 1, all_=True)
    before = note(hearing, 2, 0.0)
    hearing.lost("m", 1.0, ends=False)
    after = note(hearing, 3, 4.0)
    hearing.expire(LONG - 0.1)
    assert not before.done()
    hearing.expire(1.0 + LONG)
    assert before.done()
    assert after.done()
    assert hearing.alone == 1
    assert note(hearing, 4, 8.0) is None


async def test_one_that_comes_back_has_what_it_hears_then(hearing):
    hearing.heard("m", 1, all_=True)
    hearing.lost("m", 1.0, ends=False)
    told = note(hearing, 2, 2.0)
    hearing.heard("m", 3, all_=True)
    assert told.done()
    hearing.expire(100.0)
    assert hearing.mirrors == {"m"}


async def test_one_that_says_that_it_stops_is_not_waited_for(hearing):
    hearing.heard("m", 1, all_=True)
    told = note(hearing, 2)
    hearing.lost("m", 0.0, ends=True)
    assert told.done()


async def test_one_that_is_there_and_says_nothing_is_given_up_too(hearing):
    hearing.heard("m", 1, all_=True)
    told = note(hearing, 2, 5.0)
    assert hearing.deadline() == 5.0 + LONG
    hearing.expire(5.0 + LONG)
    assert told.done()
    assert not hearing.mirrors


async def test_what_waits_is_refused_when_somebody_else_hands_out(hearing):
    hearing.heard("m", 1, all_=True)
    told = note(hearing, 2)
    hearing.refuse(StoreFailed("no"))
    with pytest.raises(StoreFailed):
        told.result()
    assert hearing.deadline() is None


@pytest.mark.parametrize("since", [10.000334, 16.00033440114627 - LONG, 1e6 / 3, 0.1 + 0.2, 7.1, 123456.789])
async def test_at_the_deadline_it_is_over(since):
    """Also where the sum and the difference of the same times differ in their last bit; else it is due again and again."""
    for patience in (0.1, 0.7, 2.0, 3.3):
        hearing = ProgressState(patience)
        hearing.heard("m", 1, all_=True)
        waits = note(hearing, 2, since)
        hearing.expire(hearing.deadline())
        assert waits.done()
        assert hearing.deadline() is None
        hearing.heard("m", 3, all_=True)
        hearing.lost("m", since, ends=False)
        hearing.expire(hearing.deadline())
        assert hearing.deadline() is None
