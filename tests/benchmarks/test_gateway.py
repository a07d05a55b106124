"""The benchmark of the JSON door: each part works for a moment. Speed is not checked."""

import pytest

from benchmarks.gateway import wire, work
from benchmarks.gateway.plan import Crowd, Plan
from benchmarks.gateway.report import Figures, judge, markdown
from benchmarks.gateway.servers import stage

MACHINE = {"processor": "p", "cores": 2, "memory_gib": 1, "system": "s", "python": "3", "load_before": 0.0}
pytestmark = pytest.mark.timeout(240)  # several processes, each with an end of its own to every wait


def figures() -> Figures:
    return Figures(MACHINE, ["busway 1"], {"size": 64, "rounds": 1, "clients": 64, "seconds": 1.0})


def test_each_way_passes_messages_and_loses_none() -> None:
    found = work.rates(Plan(clients=8, seconds=0.3, warm=0.05), [2], 1)
    assert set(found) == {*work.WAYS, "paced_echo", "paced_share", "paced_fan"}
    for [values] in found.values():
        assert values["rate"] > 0
        assert (values["lost"], values["unanswered"]) == (0, 0)
        assert values["cpu_us"] >= 0
    assert all(found[f"paced_{way}"][0]["p50"] > 0 for way in work.PACED)


def test_in_the_fan_eight_get_each_message() -> None:
    assert [Plan(work=one).share for one in ("share", "fan")] == [1, 8]
    with stage("gateway") as made:
        values = made.run("gateway", Plan(clients=16, work="fan", seconds=0.2, warm=0.0))
    assert values["lost"] == 0
    assert values["got"] % 8 == 0


def test_subscribers_get_everything_with_one_that_never_reads() -> None:
    [found] = work.stuck(Crowd(clients=20, channels=4, seconds=0.4), 1)
    for way in ("without", "with"):
        assert found[f"got_{way}"] == found[f"due_{way}"] > 0
        assert found[f"memory_{way}"] > 0


def test_a_frame_is_as_long_as_it_says() -> None:
    before, after = wire.publish("q", 64)
    message = before + wire.NUMBER % 7 + after
    assert message[1] == 0x80 | len(message[6:])
    assert wire.number(message) == 7
    for size in (200, 70_000):
        frame = wire.frame(b"x" * size)
        head = len(frame) - size - 4
        assert int.from_bytes(frame[2:head]) == size


def test_the_goals_are_those_of_what_was_measured() -> None:
    found = figures()
    assert not list(judge(found))
    row = {"round": 0, "depth": 8, "cpu_us": 1.0, "lost": 0, "unanswered": 0, "p50": 1.0, "p99": 6.0, "p999": 9.0}
    found.echo = [row | {"rate": 10.0}, row | {"depth": 1, "rate": 20.0}]
    found.share = [row | {"rate": 30.0}, row | {"depth": 1, "rate": 50.0, "lost": 1}]
    found.quiet = found.fan = [row | {"rate": 20.0}, row | {"depth": 1, "rate": 20.0}]
    found.paced_share = [row | {"asked": 25.0, "rate": 25.0}, row | {"asked": 5.0, "rate": 5.0, "p99": 1.0}]
    share, quiet, _, missing, paced = judge(found)
    assert (share.value, share.reached) == (2.5, True)
    assert (quiet.value, quiet.reached) == (1, False)
    assert (missing.value, missing.reached) == (1, False)
    assert (paced.value, paced.reached) == (6, False)
    found.paced_fan = found.paced_echo = found.paced_share
    assert "| one queue, one channel for all | 8 | 30 (30 to 30) | 3.00 (3.00 to 3.00) |" in markdown(found)
