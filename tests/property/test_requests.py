"""Requests on shared services: whatever happens, in any order, there is one answer, and one at work for it."""

import msgspec
from hypothesis import given, settings, strategies as st

from busway.broker.flags import ERROR, PARTIAL
from busway.broker.services.actions import Action, Answer, Ask
from tests.support.asking_bench import TOPIC, Bench
from tests.support.strength import examples

turns = st.lists(
    st.tuples(
        st.sampled_from(
            ["request", "request", "gather", "yes", "yes", "no", "reply", "reply", "part", "error", "dies", "joins",
             "leaves", "cancel", "time", "vanishes"]
        ),
        st.integers(0, 5),
        st.sampled_from([0.1, 0.7, 2.0, 11.0]),
    ),
    max_size=80,
)  # fmt: skip


class Model:
    """What was promised, by request: how often it was answered for good, and who is at work for it."""

    def __init__(self) -> None:
        self.bench = Bench(plain=2, asking=2)
        self.open: dict[tuple[int, int], bool] = {}  # (conn, number) -> gather
        self.ended: set[tuple[int, int]] = set()
        self.who: dict[int, tuple[tuple[int, int], int]] = {}  # call -> request, provider
        self.asked: list[int] = []
        self.at_work: list[int] = []
        self.limits: dict[int, float] = {}
        self.given: set[tuple[tuple[int, int], int]] = set()  # request, service
        self.owed: dict[tuple[int, int], set[str]] = {}  # gathered request -> those of whom nothing was heard yet
        self.services = {conn: conn * 10 for conn in range(1, 7)}
        self.number = 0

    def take(self, actions: list[Action], about: tuple[int, int] | None = None) -> None:
        now = self.bench.now
        for one in actions:
            if isinstance(one, Answer):
                key = one.conn, one.number
                assert key in self.open, "an answer to one who doesn't wait"
                assert one.flags & PARTIAL or key not in self.ended
                if key in self.owed and one.fields:
                    self.owed[key].discard(msgspec.msgpack.decode(one.fields)[".id"])
                if not one.flags & PARTIAL:
                    assert not self.owed.get(key), "somebody was left out"
                    self.end(key)
            else:
                key = about if about and about in self.open and one.call not in self.who else self.who[one.call][0]
                self.who[one.call] = key, one.conn
                assert key in self.open
                if isinstance(one, Ask):
                    self.asked.append(one.call)
                else:
                    if one.call in self.asked:
                        self.asked.remove(one.call)
                    others = [call for call in self.at_work if self.who[call][0] == key]
                    if not self.open[key]:
                        assert all(self.limits[call] <= now for call in others), "two at work for one request"
                    assert (key, one.service) not in self.given, "twice to the same"
                    self.given.add((key, one.service))
                    self.at_work.append(one.call)
                    self.limits[one.call] = now + 2.0

    def end(self, key: tuple[int, int]) -> None:
        del self.open[key]
        self.ended.add(key)

    def excuse(self, call: int) -> None:
        """It is unwilling, so nothing has to be told of it."""
        key, conn = self.who[call]
        self.owed.get(key, set()).discard(f"p{conn}")

    def pick(self, calls: list[int], which: int) -> int | None:
        return calls[which % len(calls)] if calls else None


@given(turns)
@settings(max_examples=examples(2000), deadline=None)
def test_exactly_one_answer_and_one_at_work_whatever_happens(steps) -> None:
    model = Model()
    bench, asking = model.bench, model.bench.asking
    origin: dict[bytes, tuple[int, int]] = {}

    def perform(actions: list[Action]) -> None:
        """The frame names the request, so that each action can be told apart."""
        for one in actions:
            model.take([one], None if isinstance(one, Answer) else origin[one.frame])

    for what, which, seconds in steps:
        now = bench.now
        if what in ("request", "gather"):
            model.number += 1
            key = 200 + which % 2, model.number
            frame = b"%d" % model.number
            origin[frame] = key
            model.open[key] = what == "gather"
            if what == "gather":
                model.owed[key] = {one.name for one in asking.providers.of(TOPIC)}
            perform(asking.request(*key, TOPIC, frame, now, gather=what == "gather", limit=(0.0, 5.0)[which % 2]))
        elif what in ("yes", "no"):
            if call := model.pick(model.asked, which):
                model.asked.remove(call)
                if what == "no":
                    model.excuse(call)
                perform(asking.accepted(model.who[call][1], call, now, willing=what == "yes"))
        elif what in ("reply", "part", "error"):
            if call := model.pick(model.at_work, which):
                if what == "part":
                    if model.limits[call] > now:  # too late, it is of no interest any more
                        model.limits[call] = now + 2.0
                else:
                    model.at_work.remove(call)
                flags = {"reply": 0, "part": PARTIAL, "error": ERROR}[what]
                perform(asking.answered(model.who[call][1], call, flags, 0, b"", b"", now))
        elif what == "dies":
            conn = which + 1
            model.asked = [call for call in model.asked if model.who[call][1] != conn]
            model.at_work = [call for call in model.at_work if model.who[call][1] != conn]
            perform(asking.gone(conn, now))
        elif what == "joins":
            if all(one.conn != which + 1 for one in asking.providers.of(TOPIC)):
                model.services[which + 1] += 1
                bench.join(which + 1, asks=which % 2 == 0, service=model.services[which + 1])
        elif what == "leaves":
            for call in model.asked:
                if model.who[call][1] == which + 1:
                    model.excuse(call)
            perform(asking.leave(which + 1, model.services[which + 1], now))
        elif what == "cancel":
            if model.open:
                key = list(model.open)[which % len(model.open)]
                asking.cancel(*key, now)
                model.end(key)
        elif what == "vanishes":
            conn = 200 + which % 2
            for key in [key for key in model.open if key[0] == conn]:
                model.end(key)
            perform(asking.gone(conn, now))
        else:
            bench.now += seconds
            perform(asking.expire(bench.now))
            deadline = asking.deadline()
            assert deadline is None or deadline > bench.now
        assert asking.pending == len(model.open)
    # Whoever is silent now loses its turn, so everything comes to an end.
    for _ in range(40):
        bench.now += 2.0
        perform(asking.expire(bench.now))
    assert not model.open
    assert bench.idle()
    assert all(one.running == 0 and not one.attempts and not one.trial for one in asking.providers.of(TOPIC))
