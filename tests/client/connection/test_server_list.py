"""The servers that a client may use, from its arguments and from brokers. No connection."""

import random

import pytest

from busway.client.connection.server_list import MOST, Known, ServerList

WEST, EAST, NORTH = "tcp://10.0.0.1:7420", "tcp://10.0.0.2:7420", "tcp://10.0.0.3:7420"
SERVERS = [["west", WEST], ["east", EAST], ["north", NORTH]]


def directory(*given: str, learn: bool = True, seed: int = 1) -> ServerList:
    return ServerList(given, random.Random(seed).random, learn=learn)


def test_who_tries_in_vain_tries_fewer_at_once_and_all_in_turn() -> None:
    urls = [f"tcp://10.0.0.{number}:1" for number in range(1, 8)]
    made = directory(*urls)
    sizes, seen = [], list[str]()
    for url in urls:
        made.failed(url)
    for times in range(1, 10):
        some = made.fewer(made.order(urls[0], left=False), times)
        for url in some:
            made.failed(url)
        sizes.append(len(some))
        seen += some
    assert sizes == [4, 3, 2, 2, 2, 1, 1, 1, 1]
    assert seen == (urls * 3)[: sum(sizes)]
    made.answered(urls[3])
    assert made.fewer(urls, 6) == [urls[3]]


def test_first_what_was_given_in_its_order() -> None:
    assert directory(WEST, EAST).order("", left=False) == [WEST, EAST]


def test_then_what_was_told_by_chance() -> None:
    seen = set()
    for seed in range(50):
        made = directory(WEST, seed=seed)
        assert made.update(SERVERS, WEST) == []
        order = made.order(WEST, left=False)
        assert order[0] == WEST
        assert sorted(order) == [WEST, EAST, NORTH]
        seen.add(order[1])
    assert seen == {EAST, NORTH}


def test_the_last_one_comes_first_and_behind_all_that_are_fresh_if_it_has_left() -> None:
    made = directory(WEST, EAST)
    made.update([["north", NORTH]], EAST)
    assert made.order(EAST, left=False) == [EAST, WEST, NORTH]
    assert made.order(EAST, left=True) == [NORTH, WEST, EAST]


def test_those_who_were_silent_are_tried_last() -> None:
    for seed in range(20):
        made = directory(WEST, seed=seed)
        made.update(SERVERS, WEST)
        made.failed(NORTH)
        assert made.order(WEST, left=False) == [WEST, EAST, NORTH]
        made.failed(EAST)
        # Behind a balancer: what is known to be out of reach does not come before the way back.
        assert made.order(WEST, left=True)[0] == WEST
        made.answered(EAST)
        assert made.order(WEST, left=True)[:2] in ([EAST, WEST], [WEST, EAST])


def test_a_new_list_takes_the_place_of_the_old_one() -> None:
    made = directory(WEST)
    made.update(SERVERS, WEST)
    made.update(SERVERS[:2], WEST)
    assert made.servers == (Known("west", (WEST,)), Known("east", (EAST,)))
    assert made.order(WEST, left=False) == [WEST, EAST]


def test_nothing_is_learnt_if_that_is_not_wanted() -> None:
    made = directory(WEST, learn=False)
    assert made.update(SERVERS, WEST) == []
    assert made.servers == ()
    assert made.order(WEST, left=True) == [WEST]


def test_only_some_are_tried_at_a_time_and_each_server_has_a_turn_before_second_addresses() -> None:
    made = directory(WEST)
    many = [[f"n{one}", f"tcp://10.0.1.{one}:1", f"tcp://10.0.2.{one}:1"] for one in range(50)]
    made.update(many, WEST)
    told = made.order(WEST, left=False)[1:]
    assert len(told) == MOST
    assert all(url.startswith("tcp://10.0.1.") for url in told)
    made.update(many[:3], WEST)
    assert [url[11] for url in made.order(WEST, left=False)[1:]] == ["1"] * 3 + ["2"] * 3


@pytest.mark.parametrize(
    ("here", "there", "usable"),
    [
        (WEST, EAST, True),
        (WEST, "tls://10.0.0.2:7421", True),
        (WEST, "memory:x", False),
        (WEST, "unix:/run/bus", False),
        (WEST, "tcp://127.0.0.1:7420", False),
        (WEST, "tcp://[::1]:7420", False),
        (WEST, "tcp://localhost:7420", False),
        ("tcp://127.0.0.1:7420", "tcp://127.0.0.1:7421", True),
        ("tcp://127.0.0.1:7420", EAST, True),
        ("tcp://127.0.0.1:7420", "unix:/run/bus", False),
        ("unix:/run/bus", "unix:/run/other", True),
        ("unix:/run/bus", EAST, True),
        ("tls://10.0.0.1:7421", "tls://10.0.0.2:7421", True),
        ("tls://10.0.0.1:7421", EAST, False),
        ("tls://10.0.0.1:7421", "unix:/run/bus", False),
    ],
)
def test_addresses_that_can_not_be_used_are_left_out(here: str, there: str, usable: bool) -> None:
    made = directory(here)
    complaints = made.update([["x", there]], here)
    assert made.servers == (Known("x", (there,) if usable else ()),)
    assert (there in made.order(here, left=False)) == usable
    assert bool(complaints) == (here.startswith("tls:") and not usable)


def test_what_is_less_safe_is_told_once() -> None:
    made = directory("tls://10.0.0.1:7421")
    (complaint,) = made.update([["east", EAST]], "tls://10.0.0.1:7421")
    assert EAST in complaint
    assert "not encrypted" in complaint
    assert made.update([["east", EAST]], "tls://10.0.0.1:7421") == []


def test_what_is_no_address_is_told() -> None:
    made = directory(WEST)
    (complaint,) = made.update([["east", "nonsense", EAST]], WEST)
    assert "nonsense" in complaint
    assert made.servers == (Known("east", (EAST,)),)
