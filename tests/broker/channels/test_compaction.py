"""When a progress log is compacted, and from where on it needs its records."""

from busway.broker.channels.compaction import TIMES, Compaction


def test_it_is_due_when_the_log_has_grown_enough() -> None:
    compaction = Compaction(1000)
    compaction.wrote(999)
    assert not compaction.due
    compaction.wrote(1)
    assert compaction.due
    compaction.begin(["a"], 7)
    assert not compaction.due, "it has begun"


def test_all_channels_get_a_snapshot_in_steps() -> None:
    compaction = Compaction(0)
    names = [str(n) for n in range(250)]
    compaction.begin(names, 10)
    taken: list[str] = []
    more = True
    while more:
        part = compaction.take()
        assert part
        assert len(part) <= 100
        taken += part
        more = compaction.stepped(1000, 20 + len(taken))
    assert taken == names
    assert compaction.take() is None


def test_older_records_are_needed_until_the_last_snapshot_is_safe() -> None:
    compaction = Compaction(0)
    compaction.begin([str(n) for n in range(150)], 10)
    compaction.take()
    assert compaction.stepped(1000, 30)
    assert compaction.safe(30) is None, "more snapshots follow"
    compaction.take()
    assert not compaction.stepped(1000, 50)
    assert compaction.safe(49) is None, "the last one is not safe"
    assert compaction.safe(50) == 10
    assert compaction.safe(60) is None, "it is over"


def test_the_next_one_depends_on_the_size_of_the_snapshots() -> None:
    compaction = Compaction(100)
    compaction.begin(["a"], 0)
    compaction.take()
    compaction.stepped(5000, 1)
    compaction.safe(1)
    compaction.wrote(TIMES * 5000 - 1)
    assert not compaction.due
    compaction.wrote(1)
    assert compaction.due


def test_after_a_failure_nothing_is_removed_and_it_is_tried_again_later() -> None:
    compaction = Compaction(100)
    compaction.begin(["a"], 5)
    compaction.take()
    compaction.stepped(50, 6)
    compaction.fail()
    assert compaction.safe(100) is None
    assert compaction.take() is None
    assert not compaction.due
    compaction.wrote(100)
    assert compaction.due


def test_a_log_that_was_opened_counts_what_it_has() -> None:
    compaction = Compaction(1000)
    compaction.resume(900, 0)
    assert not compaction.due
    compaction.wrote(100)
    assert compaction.due
    many = Compaction(1000)
    many.resume(100_000, 10_000)
    assert not many.due, "most of it is the state of its channels"
