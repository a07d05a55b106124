"""Duplicates after a reconnect are dropped, and later deliveries of the same messages are not."""

from collections import deque
from types import SimpleNamespace

from hypothesis import given, strategies as st

from busway.client.channels.duplicates import Duplicates, WithoutDuplicates

BROKERS = ("a", "b")
STEPS = st.one_of(
    st.tuples(st.just("arrives"), st.sampled_from(BROKERS), st.integers(0, 5)),
    st.tuples(st.just("done"), st.sampled_from(BROKERS), st.integers(0, 5)),
    st.tuples(st.just("refill"), st.just(""), st.integers(1, 4)),
    st.tuples(st.just("take"), st.just(""), st.integers(1, 4)),
)


@given(st.lists(STEPS, max_size=60))
def test_as_if_all_that_waits_was_looked_through(steps):
    duplicates, inbox, received = Duplicates(), deque(), 0
    ready = WithoutDuplicates([], 0, duplicates)
    waiting, given_out, expected = [], [], []
    for what, broker, number in steps:
        if what == "arrives":
            message = SimpleNamespace(broker=broker, offset=number)
            inbox.append(message)
            waiting.append(message)
            received += 1
        elif what == "done":
            duplicates.add(broker, [number], received)
            waiting = [one for one in waiting if (one.broker, one.offset) != (broker, number)]
        elif what == "refill":
            if not ready.__length_hint__():
                batch = [inbox.popleft() for _ in range(min(number, len(inbox)))]
                ready = WithoutDuplicates(batch, received - len(inbox) - len(batch), duplicates)
        else:
            for _ in range(number):
                if (message := next(ready, None)) is not None:
                    given_out.append(message)
                    expected.append(waiting.pop(0))
    while inbox or ready.__length_hint__():
        given_out += ready
        batch = [inbox.popleft()] if inbox else []
        ready = WithoutDuplicates(batch, received - len(inbox) - len(batch), duplicates)
    given_out += ready
    assert list(map(id, given_out)) == list(map(id, expected + waiting))


def test_nothing_is_remembered_for_ever():
    duplicates = Duplicates()
    message = SimpleNamespace(broker="a", offset=1)
    for arrived in range(1, 1000):
        duplicates.add("a", [arrived], arrived)
        assert not duplicates.contains(message, arrived), "it has arrived since"
    assert len(duplicates) <= 1
