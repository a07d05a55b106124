"""The replay guard: repeated requests within the window are refused, and so are those that it has no room for."""

from hypothesis import given, strategies as st

from busway.gateway.auth.replay_guard import ReplayGuard


def test_a_request_is_new_once():
    replays = ReplayGuard(10)
    assert replays.look(b"a", 100, 100) == "new"
    assert replays.look(b"a", 100, 105) == "again"
    assert replays.look(b"b", 100, 105) == "new"


def test_requests_out_of_the_window_are_late_and_not_remembered():
    replays = ReplayGuard(10)
    assert replays.look(b"a", 89, 100) == "late"
    assert replays.look(b"b", 111, 100) == "late"
    assert replays.look(b"c", float("nan"), 100) == "late"
    assert len(replays) == 0
    assert replays.look(b"d", 90, 100) == "new"
    assert replays.look(b"e", 110, 100) == "new"


def test_what_is_out_of_the_window_is_forgotten():
    replays = ReplayGuard(10)
    for number in range(50):
        assert replays.look(bytes([number]), 100 + number, 100 + number) == "new"
    assert len(replays) == 11


def test_without_room_the_window_becomes_shorter():
    replays = ReplayGuard(10, most=3)
    for number in range(5):
        assert replays.look(bytes([number]), 100 + number, 104) == "new"
    assert len(replays) == 3
    assert [replays.look(bytes([number]), 100 + number, 104) for number in range(5)] == [
        *("late", "late", "again", "again", "again")
    ]
    assert replays.look(b"late", 101, 104) == "late"


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(-4, 4), st.integers(-2, 3)), max_size=60),
    st.integers(1, 4),
)
def test_nothing_is_new_twice_whatever_the_clock_does(requests, most):
    replays, now, taken = ReplayGuard(3, most=most), 100, set()
    for number, off, passed in requests:
        now += passed
        request = (number, now + off)
        if replays.look(repr(request).encode(), request[1], now) == "new":
            assert request not in taken
            taken.add(request)
        assert len(replays) <= most
