"""Old buckets go, by age, bytes and count; sequences, offsets and publishers outlive them."""

from pathlib import Path

import pytest

from busway import errors
from busway._core import Log, SimulatedFiles
from tests.support.stored import read_all, row, wait_safe

SECOND = 1_000_000_000
ON_THEIR_WAY = 131_072
"""Messages that one client has on their way at most."""


def fill(log: Log, count: int, *, begin: int = 0, size: int = 100, topic: str = "a") -> None:
    for number in range(begin, begin + count):
        assert log.append([row(topic, bytes(size), session=1, number=number)], number * SECOND)
    assert wait_safe(log) is None


@pytest.fixture(params=["memory", "disk"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "disk" else None


def test_by_age(where: Path | None) -> None:
    log = Log.open(where, bucket_age=10 * SECOND, max_age=50 * SECOND)
    fill(log, 100)
    assert wait_safe(log) is None
    before = log.first
    records, _, buckets = log.trim(100 * SECOND)
    # In memory it keeps its bounds by itself.
    assert (records, buckets) == (log.first - before, (log.first - before) // 11)
    assert 40 <= log.first <= 50
    # The last bucket too, when it is old as a whole; the log goes on where it was.
    while log.usage[:2] != (0, 0):  # once the writer has sealed it
        log.trim(1000 * SECOND)
    assert log.first == 100
    assert log.append([row()], 1000 * SECOND) == [(100, 101)]


def test_by_bytes(where: Path | None) -> None:
    log = Log.open(where, max_bytes=1 << 20, max_age=0)
    fill(log, 3000, size=1000)
    log.trim(0)
    assert 900_000 < log.usage[0] <= (1 << 20) + (1 << 17)
    assert read_all(log)[0].offset == log.first > 1000


def test_by_count(where: Path | None) -> None:
    log = Log.open(where, max_count=3000, max_age=0)
    fill(log, 10_000, size=0)
    log.trim(0)
    assert 3000 <= log.next - log.first <= 3000 + 375
    first, then, block = log.read(0, 1)
    assert (first, then) == (log.first, log.first + 1)
    assert block


def test_what_is_held_stays(tmp_path: Path) -> None:
    log = Log.open(tmp_path, bucket_bytes=2000, max_age=0)
    fill(log, 300)
    log.set(max_count=1)
    log.trim(0, 100)
    assert 80 < log.first <= 100
    log.trim(0)
    assert log.first > 250


@pytest.mark.parametrize("seed", range(40))
def test_sequences_outlive_their_buckets(seed: int) -> None:
    """Also when the power is cut in the middle of the removal."""
    files = SimulatedFiles()
    log = Log.open(files, bucket_bytes=600, safety="synced", max_age=0)
    fill(log, 20, topic="old")
    fill(log, 20, begin=20, topic="new")
    log.set(max_age=5 * SECOND)
    files.fail(fuse=seed)
    try:
        log.trim(500 * SECOND)
        log.trim(500 * SECOND)
    except errors.DataFailed:
        assert seed < 40
    files.power_cut(seed)
    log = Log.open(files, bucket_bytes=600)
    assert log.damage == []
    assert log.sequences() == {"old": 20, "new": 20}
    assert [known.offset for known in read_all(log)] == list(range(log.first, 40))
    assert log.append([row("old"), row("new")], 501 * SECOND) == [(40, 21), (41, 21)]
    assert log.append([row("new", session=1, number=39)], 501 * SECOND)[0][0] == 39


def test_many_topics_with_a_small_limit(tmp_path: Path) -> None:
    """What a topic costs does not grow with the buckets there were, nobody has to ask for old ones to go, and sequences go on."""
    log = Log.open(tmp_path, max_count=1000, max_age=0)
    topics = [f"some/topic/{number}" for number in range(20_000)]
    for turn in range(1, 4):
        for begin in range(0, len(topics), 100):
            rows = [row(topic, b"x" * 10, session=1, number=0) for topic in topics[begin : begin + 100]]
            rows = [(*given[:5], turn * 100_000 + begin + at, *given[6:]) for at, given in enumerate(rows)]
            assert [sequence for _, sequence in log.append(rows, turn)] == [turn] * 100
            assert wait_safe(log) is None
        assert log.next - log.first < 1000 + 9 * 256
    log.trim(4)
    on_disk = sum(file.stat().st_size for file in tmp_path.glob("0*"))
    names = sum(map(len, topics))
    assert on_disk < 5 * (names + 10 * len(topics)) + 1_000_000
    assert sum(log.usage[::2]) == on_disk
    for _ in range(2):
        log.close()
        log = Log.open(tmp_path, max_count=1000, max_age=0)
        assert log.damage == []
        assert log.sequences() == dict.fromkeys(topics, 3)
        assert log.append([row(topics[0], session=1, number=300_000)], 5)[0][0] == 40_000
    assert log.append([row(topics[5])], 5)[0][1] == 4


@pytest.mark.parametrize("bad", ["newest", "older"])
def test_one_file_with_all_topics_is_damaged(tmp_path: Path, bad: str) -> None:
    log = Log.open(tmp_path, bucket_bytes=600, max_count=10, max_age=0)
    fill(log, 100, topic="old")
    fill(log, 500, begin=100, topic="new")
    log.trim(0)
    log.close()
    wholes = sorted(tmp_path.glob("*.all"))[-2:]
    assert len(wholes) == 2
    file = wholes[bad == "newest"]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    log = Log.open(tmp_path, max_count=10, max_age=0)
    assert file.name in {name for name, *_ in log.check()}
    assert log.sequences() == {"old": 100, "new": 500}
    assert log.append([row(session=1, number=99)], 0)[0][0] == 99


def test_a_resend_whose_record_is_gone() -> None:
    log = Log.open(SimulatedFiles(), bucket_bytes=600, max_age=0, max_count=1)
    fill(log, 20)
    log.trim(0)
    assert log.first > 10
    assert log.append([row(session=1, number=5)], 0) == [(5, 0)]


def test_publishers_are_forgotten_by_age(tmp_path: Path) -> None:
    log = Log.open(tmp_path, once_age=10 * SECOND)
    fill(log, 5)
    log.trim(14 * SECOND)
    assert log.append([row(session=1, number=2)], 14 * SECOND) == [(2, 3)]
    log.trim(15 * SECOND)
    assert log.append([row(session=1, number=2)], 15 * SECOND) == [(5, 6)]


@pytest.mark.parametrize("kept", ["memory", "disk"])
def test_many_gaps_in_the_numbers(kept: str, tmp_path: Path) -> None:
    """As many as a client has on its way are known, also after a restart. Of more they are refused, never stored twice."""
    log = Log.open(None if kept == "memory" else tmp_path, max_age=0, pending_bytes=1 << 30)
    rows = [row(session=1, number=number) for number in range(0, 2 * ON_THEIR_WAY, 2)]
    places = [(offset, offset + 1) for offset in range(ON_THEIR_WAY)]
    assert log.append(rows, 0) == places
    if kept == "disk":
        log.close()
        log = Log.open(tmp_path, max_age=0, pending_bytes=1 << 30)
    for at in (0, 1, 1000, ON_THEIR_WAY - 1):
        assert log.append([rows[at]], 0) == [places[at]]
    # A number that was left out is not known to be stored, and still can be.
    assert log.append([row(session=1, number=2 * ON_THEIR_WAY - 3)], 0) == [(ON_THEIR_WAY, ON_THEIR_WAY + 1)]
    more = [row(session=1, number=number) for number in range(2 * ON_THEIR_WAY, 6 * ON_THEIR_WAY, 2)]
    assert len(log.append(more, 0)) == len(more)
    for given in more[-ON_THEIR_WAY::1000]:
        assert log.append([given], 0)[0][0] < ON_THEIR_WAY + 1 + len(more)
    with pytest.raises(ValueError, match="too old"):
        log.append([row(session=1, number=0)], 0)


def test_many_publishers_with_many_gaps() -> None:
    """The memory for all of them is bounded: those with much lose some of it, and nobody is forgotten as a whole."""
    log = Log.open(None, max_age=0, max_count=1000, once_age=1 << 62)
    assert log.append([row(session=100, number=1)], 0) == [(0, 1)]
    for number in range(0, 240_000, 2):
        assert len(log.append([row(session=session, number=number) for session in range(1, 11)], 1)) == 10
    assert log.append([row(session=100, number=1)], 2)[0][0] == 0
    for session in range(1, 11):
        with pytest.raises(ValueError, match="too old"):
            log.append([row(session=session, number=0)], 2)
        assert log.append([row(session=session, number=239_998)], 2)[0][0] <= 1_200_000


def test_many_publishers() -> None:
    log = Log.open(None, max_age=0, pending_bytes=1 << 30)
    rows = [row(session=session, number=1) for session in range(1, 70_000)]
    assert len(log.append(rows[:60_000], 1)) == 60_000
    assert len(log.append(rows[60_000:], 2)) == 9_999
    assert log.append(rows[-1:], 3) == [(69_998, 69_999)]


def test_the_clock_is_set_back(where: Path | None) -> None:
    log = Log.open(where, max_age=0)
    for now in (100, 50, 120, 90):
        log.append([row()], now)
    assert wait_safe(log) is None
    assert [log.find_time(now) for now in (0, 100, 101, 120, 121)] == [0, 0, 2, 2, 4]


YEAR = 365 * 24 * 3600 * SECOND
HOUR = 3600 * SECOND


@pytest.mark.parametrize("again", [False, True])
def test_a_clock_that_was_ahead_for_a_while(where: Path | None, *, again: bool) -> None:
    """What was stored then has a wrong time, and goes with what came next; all others are found by their time, and go in time."""
    log = Log.open(where, max_age=10 * HOUR, bucket_age=HOUR)

    def put(hour: float, count: int = 10) -> int:
        taken = log.append([row("t")] * count, int(YEAR + hour * HOUR))
        assert wait_safe(log) is None
        return taken[0][0]

    put(0)
    put(0.5)
    put(365 * 24)
    if again and where:
        log.close()
        log = Log.open(where, max_age=10 * HOUR, bucket_age=HOUR)
    right = [put(0.6), put(0.7), put(1.5), put(9)]
    assert right == [30, 40, 50, 60]
    if again and where:
        log.close()
        log = Log.open(where, max_age=10 * HOUR, bucket_age=HOUR)
    looked = {-1: 0, 0: 0, 0.4: 10, 0.55: 20, 0.6: 20, 0.65: 40, 1: 50, 8: 60, 9: 60, 10: 70}
    assert {hour: log.find_time(int(YEAR + hour * HOUR)) for hour in looked} == looked
    for hour, first in ((9, 0), (10.55, 20), (10.65, 30), (11.6, 60)):
        log.trim(int(YEAR + hour * HOUR))
        assert log.first == first


def test_a_clock_that_was_ahead_when_the_last_message_came(tmp_path: Path) -> None:
    log = Log.open(tmp_path, max_age=10 * HOUR, bucket_age=HOUR)
    log.append([row("t")], YEAR)
    log.append([row("t")], 2 * YEAR)
    assert wait_safe(log) is None
    while log.usage[1] and log.trim(YEAR + HOUR)[2]:
        pass
    log.trim(YEAR + 9 * HOUR)
    assert log.usage[1] == 2
    while log.usage[1] > 0:  # once the writer has sealed it
        log.trim(YEAR + 12 * HOUR)
    assert log.append([row("t")], YEAR + 13 * HOUR) == [(2, 3)]


def test_a_clock_that_is_wrong_for_a_while(where: Path | None) -> None:
    """It was right before, so it does not matter what it says now: nothing goes too early."""
    log = Log.open(where, max_age=10 * HOUR, bucket_age=HOUR)
    for hour in (0, 1, -5000, -4999, 2, 3):
        log.append([row("t")], YEAR + hour * HOUR)
    assert wait_safe(log) is None
    log.trim(YEAR + 4 * HOUR)
    assert log.first == 0
    assert [log.find_time(YEAR + hour * HOUR) for hour in (0, 1, 2, 3)] == [0, 1, 4, 5]


def test_what_waits_is_known_from_indexes_or_records(where: Path | None) -> None:
    log = Log.open(where, bucket_bytes=300, max_age=0)
    for number in range(10):
        due = 100 - number if number % 2 else 0
        assert log.append([row(session=1, number=number, due=due)], 5) == [(number, 0 if due else number // 2 + 1)]
    assert wait_safe(log) is None
    assert log.release(log.read(5, 1)[2], 95) == 1
    assert wait_safe(log) is None
    assert (log.next, log.topics()) == (11, [("a", 1, 6, 6)])
    waiting = [(91, 9), (93, 7), (97, 3), (99, 1)]
    assert log.waiting() == waiting
    if where:
        log.close()
        log = Log.open(where)
        assert log.waiting() == waiting
        log.close()
        for index in (*where.glob("*.idx"), *where.glob("*.all")):  # then it is found in the records
            index.unlink()
        log = Log.open(where, bucket_bytes=300)
        assert log.waiting() == waiting
    log.set(max_count=4)
    log.append([row()] * 2000, 96)
    assert wait_safe(log) is None
    log.trim(96)
    assert (log.waiting(), log.waits) == ([], (0, 4))


def test_what_has_expired_when_it_is_due_waits_no_more() -> None:
    log = Log.open(None, max_delay=50)
    assert log.append([row(session=1, number=1, due=50, expires=40)], 5)
    with pytest.raises(ValueError, match="later than"):
        log.append([row(session=1, number=2, due=56)], 5)
    assert wait_safe(log) is None
    assert log.release(log.read(0, 1)[2], 50) == 0
    assert (log.waits, log.next) == ((0, 0), 1)


def test_settings_are_checked(tmp_path: Path) -> None:
    for settings, word in (({"safety": "no"}, "safety"), ({"max_age": -1}, "max_age"), ({"speed": 1}, "speed")):
        with pytest.raises(ValueError, match=word):
            Log.open(tmp_path, **settings)
    log = Log.open(tmp_path)
    log.close()
    log.close()
    with pytest.raises(errors.DataFailed, match="closed"):
        log.append([row()], 0)


def test_too_large() -> None:
    log = Log.open(None)
    for bad in (row("t" * 70_000), row(sender="s" * 256)):
        with pytest.raises(ValueError, match="at most"):
            log.append([bad], 0)


def test_records_that_are_not_needed_are_removed_with_the_next_full_bucket(tmp_path: Path) -> None:
    log = Log.open(tmp_path, bucket_bytes=10_000, max_age=0)
    fill(log, 200)
    _, buckets, _ = log.usage
    assert (log.first, buckets > 2) == (0, True)
    log.set(keep_from=100)
    fill(log, 200, begin=200)
    assert 0 < log.first <= 100
    assert read_all(log)[0].offset == log.first
    log.set(keep_from=1000)
    fill(log, 200, begin=400)
    assert log.first < 600, "the last bucket stays"
    assert read_all(log)[-1].offset == 599
    log.close()
    assert Log.open(tmp_path, max_age=0).next == 600


def test_a_power_cut_leaves_what_is_needed() -> None:
    """It is in a full bucket, and so it was synced, before the buckets that are not needed are removed."""
    for seed in range(50):
        files = SimulatedFiles()
        log = Log.open(files, bucket_bytes=1000, max_age=0)
        fill(log, 30)
        log.set(keep_from=20)
        fill(log, seed, begin=30)
        files.power_cut(seed)
        left = Log.open(files, max_age=0)
        assert left.first <= 20
        # Without the removal the power cut may take any record of the last bucket.
        assert left.first == 0 or left.next >= 20
