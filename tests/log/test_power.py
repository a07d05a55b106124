"""A power cut at any moment, on files that lose, tear and reorder unsynced data: safe records are there, in their
order.
"""

import random
from contextlib import suppress

import pytest

from busway import errors
from busway._core import Log, SimulatedFiles
from tests.support.stored import Model, Stored, last_sequences, read_all, row, stored

ROUNDS = 300
LIVES = 12


class Life:
    """A log that dies and comes back, beside a model of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.files = SimulatedFiles()
        self.model = Model()
        self.safe = self.number = 0
        self.now = 1000

    def open(self) -> Log:
        # Small, so that there are many buckets; nothing is removed by age.
        return Log.open(self.files, safety="synced", bucket_bytes=600, max_age=0, max_count=0, pending_bytes=2000)

    def live(self, steps: int) -> None:
        log = self.open()
        self.compare(log)
        self.files.fail(fuse=self.random.randrange(1, 60))
        with suppress(errors.DataFailed):
            for _ in range(steps):
                self.step(log)
            log.close()
        self.files.power_cut(self.random.randrange(1 << 60))

    def step(self, log: Log) -> None:
        match self.random.randrange(10):
            case 0 if self.model.records:
                # Sent again, by chance before it is known to be safe.
                known = self.random.choice(self.model.records)
                given = row(known.topic, known.payload, session=known.session, number=known.number)
                assert log.append([given], self.now) == [(known.offset, known.sequence)]
            case 1:
                self.now -= 5
            case _:
                for _ in range(self.random.randrange(1, 5)):
                    self.number += 1
                    self.now += self.random.randrange(3)
                    topic = self.random.choice("abc")
                    payload = bytes([self.number % 256]) * self.random.choice([0, 3, 50, 700])
                    given = row(topic, payload, session=self.random.randrange(1, 3), number=self.number)
                    taken = log.append([given], self.now)
                    assert taken in ([], [self.model.append(given)] if taken else [])
                log.flush()
        if gone := log.remove_unwritten():
            # Refused, but on a disk without power nobody can take it back: it may be there later.
            assert gone[0] >= self.safe
            raise errors.DataFailed(gone[2])
        self.safe = log.safe
        assert self.safe <= log.next == len(self.model.records)

    def compare(self, log: Log) -> None:
        """Nothing that was safe is gone, nothing is there twice, nothing is made up."""
        found = read_all(log, most=self.random.choice([1, 200, 1 << 20]))
        assert len(found) >= self.safe
        assert found == self.model.records[: len(found)]
        assert log.next == log.safe == len(found)
        assert all(what == "a torn tail" or "index" in what for *_, what in log.damage), log.damage
        self.model.cut(len(found))
        assert last_sequences(log) == self.model.topics()
        self.safe = log.safe
        for known in self.random.sample(found, min(len(found), 3)):
            self.known_again(log, known)

    def known_again(self, log: Log, known: Stored) -> None:
        given = row(known.topic, known.payload, session=known.session, number=known.number)
        assert log.append([given], self.now) == [(known.offset, known.sequence)]
        assert log.find(known.topic, known.sequence) == known.offset


@pytest.mark.parametrize("part", range(4))
def test_power_cuts(part: int) -> None:
    for seed in range(part * ROUNDS, (part + 1) * ROUNDS):
        life = Life(seed)
        try:
            for _ in range(LIVES):
                life.live(life.random.randrange(1, 15))
        except BaseException:
            print(f"seed {seed}")
            raise


@pytest.mark.parametrize("seed", range(20))
def test_what_is_shown_after_a_kill_survives_a_power_cut_then(seed: int) -> None:
    """The process was killed between the write and the sync: what the next one shows of that, nothing takes back."""
    files = SimulatedFiles()
    log = Log.open(files, by_hand=True)  # written, and never synced
    log.append([row("a", b"1"), row("b", b"2" * 5000)], 1000)
    log.flush()
    log.write()
    files = files.survivor()
    again = Log.open(files, by_hand=True)
    shown = read_all(again)
    assert [one.payload for one in shown] == [b"1", b"2" * 5000]
    files = files.survivor()  # it is not closed either
    files.power_cut(seed)
    assert read_all(Log.open(files, by_hand=True)) == shown


@pytest.mark.parametrize("seed", range(200))
def test_what_somebody_else_has_not_confirmed_keeps_its_order(seed: int) -> None:
    """Written and never synced, as where a mirror is waited for: what is left of it is no reason to store the rest behind it."""
    chance = random.Random(seed)
    files = SimulatedFiles()
    log = Log.open(files, by_hand=True)
    confirmed = 0
    sent = [row("a", bytes(chance.randrange(60)), session=1, number=number) for number in range(1, 30)]
    left = sent[:]
    while left:
        log.confirm(confirmed)
        count = chance.randrange(1, 4)
        log.append(left[:count], 1000)
        del left[:count]
        log.flush()
        log.write()
        confirmed = chance.choice([confirmed, confirmed, log.safe, chance.randrange(confirmed, log.written + 1)])
    files = files.survivor()
    files.power_cut(seed)
    again = Log.open(files, by_hand=True)
    holes = [(begin, end) for _, _, begin, end, _ in again.damage if end is not None]
    assert all(end <= confirmed for _, end in holes), (holes, confirmed)
    again.append(sent[confirmed:], 2000)
    again.flush()
    again.write()
    numbers = [one.number for one in read_all(again)]
    assert numbers == sorted(numbers)
    assert {one[5] for one in sent[confirmed:]} <= {*numbers}


def test_a_hole_in_what_was_confirmed_stays_one_while_more_waits_to_be() -> None:
    """Nobody sends it again, so nothing that lies behind it is given up."""
    kept = 0
    for seed in range(100):
        files = SimulatedFiles()
        log = Log.open(files, by_hand=True)
        for number in range(1, 41):
            log.confirm(max(number - 4, 0))  # somebody else is always three behind
            log.append([row("a", b"some payload", session=1, number=number)], 1000)
            log.flush()
            log.write()
        files = files.survivor()
        files.power_cut(seed)
        found = [one.offset for one in read_all(Log.open(files, by_hand=True))]
        kept += bool(found) and len(found) < found[-1] + 1
    assert kept > 20, "by chance the file is gone, or it was the first record"


def read_there(log: Log) -> list[Stored]:
    """What is there, also behind holes."""
    return [one for begin in range(log.next) for one in stored(log.read(begin, 1)[2]) if one.offset == begin]


@pytest.mark.parametrize("mirrored", [False, True])
def test_no_index_tells_of_records_that_are_gone(mirrored: bool) -> None:
    """Written to many buckets and never asked to be synced: whoever sends again what was not confirmed finds it stored then, in its order."""
    for seed in range(200):
        chance = random.Random(seed)
        files = SimulatedFiles()
        log = Log.open(files, by_hand=True, bucket_bytes=600, max_age=0)
        sent = [row(chance.choice("ab"), bytes(chance.randrange(60)), session=1, number=n) for n in range(1, 80)]
        left, confirmed = sent[:], 0
        while left:
            if mirrored:
                log.confirm(confirmed)
            count = chance.randrange(1, 5)
            log.append(left[:count], 1000)
            del left[:count]
            log.flush()
            log.write()
            confirmed = chance.choice([confirmed, confirmed, log.safe, chance.randrange(confirmed, log.written + 1)])
        files = files.survivor()
        files.power_cut(seed)
        again = Log.open(files, by_hand=True, bucket_bytes=600, max_age=0)
        sent = sent[confirmed:] if mirrored else sent
        places = again.append(sent, 2000)
        again.flush()
        again.write()
        found = read_there(again)
        known = {one.number: (one.offset, one.sequence) for one in found}
        assert [known.get(one[5]) for one in sent] == places, seed
        assert len(known) == len(found)
        if mirrored:
            assert [*known] == sorted(known), seed


def written(files: SimulatedFiles, count: int) -> Log:
    log = Log.open(files, by_hand=True, bucket_bytes=600, max_age=0)
    log.append([row("a", b"some payload", session=1, number=number) for number in range(1, count + 1)], 1000)
    log.flush()
    return log


@pytest.mark.parametrize("seed", range(20))
def test_a_full_bucket_that_the_disk_does_not_take_is_told(seed: int) -> None:
    files = SimulatedFiles()
    log = written(files, 60)  # enough for a file with all that is known
    files.fail(sync=True)
    log.write()
    assert log.stuck is not None
    why, count = log.stuck
    assert why == "the disk did not take it"
    assert 0 < count == log.safe < 60, "nothing is written behind that bucket"
    assert not any(name.endswith((".idx", ".all")) for name, _ in files.contents())
    with pytest.raises(errors.DataFailed, match="did not take it"):
        log.append([row("a")], 1000)
    files.fail()
    log.write()
    assert (log.stuck, log.remove_unwritten(), log.safe) == (None, None, 60)
    # The sync that failed has stored nothing, and the one after it would not have either.
    files = files.survivor()
    files.power_cut(seed)
    again = Log.open(files, by_hand=True)
    assert (
        len(again.append([row("a", b"some payload", session=1, number=number) for number in range(1, 61)], 1000)) == 60
    )
    again.flush()
    again.write()
    assert {one.number for one in read_there(again)} == {*range(1, 61)}


def test_closing_tells_of_a_full_bucket_that_the_disk_does_not_take() -> None:
    files = SimulatedFiles()
    log = written(files, 20)
    files.fail(sync=True)
    log.write()
    with pytest.raises(errors.DataFailed, match="acknowledged messages may be lost: the disk did not take it"):
        log.close()
