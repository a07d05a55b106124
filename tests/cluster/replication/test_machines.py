"""The machines of primary and replica, without sockets: copied offsets, and conditions of an acknowledgement."""

import random
from collections import deque
from itertools import count

import pytest

from busway._core import Log, SimulatedFiles
from busway.cluster.node import Stranger
from busway.cluster.replication.compare import agrees, have, judge, mark, mark_at
from busway.cluster.replication.messages import Ask, Gone, Got, Have, Offer, Tail, Trouble, pack, read
from busway.cluster.replication.primary import WINDOW, AckWait, Primary, furthest
from busway.cluster.replication.replica import Replica, wanted
from busway.streams import StreamConfig
from tests.support.mirror_machines import CONFIG, LIMITS, Pair, Shelf, add, content, copy_some, filled
from tests.support.stored import row


def test_a_record_is_known_again_whatever_was_noted_in_it_when_it_was_written():
    log = Log.open(SimulatedFiles(), **LIMITS)
    log.append([row("t", b"x", session=5, number=1)], 1)
    log.flush()
    _, _, block = log.read_written(0, 1)
    other = bytearray(block)
    other[79] ^= 0b11111110  # that it began a write, and how many before it were not safe then
    assert other[79] != block[79]
    assert mark(bytes(other)) == mark(block)
    other[79] ^= 1
    assert mark(bytes(other)) != mark(block)


def test_a_new_copy_is_whole_and_goes_on() -> None:
    pair = Pair(filled(100))
    assert pair.ask().how == "anew"
    pair.run()
    assert content(pair.copy) == content(pair.log)
    add(pair.log, 50)
    pair.run()
    assert content(pair.copy) == content(pair.log)
    assert pair.origin.logs["s"].have == 150
    assert pair.origin.in_flight == 0


def test_a_copy_that_agrees_goes_on_from_where_it_was() -> None:
    first = Pair(filled(100))
    first.ask()
    first.run()
    add(first.log, 30)
    first.shelf.crash()
    again = Pair(first.log, first.shelf)
    assert again.ask().how == "on"
    part = again.origin.part()
    assert part is not None
    assert part.end > 100
    assert len(part.block) < 40 * 120, "only what is new"
    again.tell(part)
    again.run()
    assert content(again.copy) == content(again.log)
    assert not again.shelf.aside


def test_a_copy_of_something_else_is_put_aside() -> None:
    first = Pair(filled(100))
    first.ask()
    first.run()
    other = filled(10)
    other.append([row("t", b"other", session=9, number=n + 1) for n in range(100)], 1000)
    other.flush()
    again = Pair(other, first.shelf)
    assert again.ask().how == "anew"
    again.run()
    assert content(again.copy) == content(other)
    assert [log.next for log in first.shelf.aside] == [100]


def test_one_that_differs_and_is_longer_is_put_aside() -> None:
    first = Pair(filled(100))
    first.ask()
    first.run()
    other = filled(10)
    other.append([row("t", b"other", session=9, number=n + 1) for n in range(10)], 1000)
    other.flush()
    again = Pair(other, first.shelf)
    assert again.ask().how == "check"
    again.run()
    assert content(again.copy) == content(other)
    assert len(first.shelf.aside) == 1


@pytest.mark.parametrize("left", [0, 1, 40])
def test_a_node_that_lost_its_end_gets_it_back(left) -> None:
    first = Pair(filled(100))
    first.ask()
    first.run()
    short = Log.open(SimulatedFiles(), **LIMITS)
    if left:
        copy_some(first.log, short, 0, left)
    again = Pair(short, first.shelf)
    assert again.ask().how == "check"
    assert content(short) == content(first.log)
    assert short.append([row("t", b"payload 99", session=5, number=100)], 1000) == [(99, 100)], "it is known again"
    add(short, 5)
    again.run()
    assert content(again.copy) == content(short)
    assert not again.shelf.aside


def test_a_node_that_lost_everything_begins_where_its_copy_does() -> None:
    first = Pair(filled(100))
    first.ask()
    first.run()
    first.copy.trim_to(50)
    begin = first.copy.first
    assert 0 < begin <= 50
    files = SimulatedFiles()
    lost = Log.open(files, **LIMITS)
    again = Pair(lost, first.shelf)
    assert again.ask().how == "check"
    assert content(lost) == content(first.copy)
    assert lost.first == begin
    lost.close()
    assert Log.open(files.survivor(), **LIMITS).damage == [], "nothing is missing before it"


def test_nothing_is_taken_back_where_something_new_has_come() -> None:
    first = Pair(filled(100))
    first.ask()
    first.run()
    short = Log.open(SimulatedFiles(), by_hand=True, **LIMITS)
    assert short.copy(first.log.read_written(0, 2000)[2])
    short.write()
    short.append([row("t", b"new", session=9, number=1)], 1000)
    short.flush()
    again = Pair(short, first.shelf)
    again.ask()
    short.write()
    again.run()
    assert content(again.copy) == content(short)
    assert [log.next for log in again.shelf.aside] == [100]


def test_nothing_is_taken_back_where_something_new_was_written_meanwhile() -> None:
    """It was on its way into the file when the stream was offered, and is there when the mirror answers."""
    first = Pair(filled(10))
    first.ask()
    first.run()
    short = Log.open(SimulatedFiles(), by_hand=True, **LIMITS)
    copy_some(first.log, short, 0, 5)
    short.write()
    short.append([row("t", b"new", session=9, number=1)], 1000)
    short.flush()
    again = Pair(short, first.shelf)
    offer = again.origin.offer("s", CONFIG, short, again.mirror.ask().have["s"])
    short.write()
    again.tell(offer)
    again.run()
    assert (short.next, content(again.copy)) == (6, content(short))
    assert [log.next for log in again.shelf.aside] == [10]


def test_what_the_node_removes_the_mirror_removes() -> None:
    pair = Pair(filled(200, max_count=100))
    pair.ask()
    pair.run()
    assert pair.copy.first == 0
    assert pair.log.trim(1000)[2] > 0
    assert pair.log.first > 0
    pair.run()
    assert pair.log.first - 20 < pair.copy.first <= pair.log.first
    assert content(pair.copy, pair.log.first) == content(pair.log)


def test_a_copy_far_behind_goes_on_where_the_node_begins_now() -> None:
    pair = Pair(filled(20, max_count=100))
    pair.ask()
    pair.run()
    add(pair.log, 400)
    pair.log.trim(1000)
    again = Pair(pair.log, pair.shelf)
    assert pair.log.first > 20
    assert again.ask().how == "on"
    assert again.copy.first == again.copy.next == pair.log.first
    again.run()
    assert content(again.copy) == content(pair.log)


def test_a_hole_that_the_node_has_is_no_difference_and_another_is() -> None:
    log = filled(60)
    holes = Have(0, 60, have(log).mark, ((10, 20),))
    assert judge(log, have(log), holes) == "anew"
    holed = Log.open(SimulatedFiles(), **LIMITS)
    copy_some(log, holed, 0, 10)
    copy_some(log, holed, 20, 60)
    assert judge(holed, have(holed), holes) == "on"
    assert judge(log, have(log), Have(30, 60, have(log).mark)) == "anew", "what lies before is missing"
    assert judge(log, have(log), Have(60, 60)) == "anew"
    assert judge(log, have(log), Have(0, 0)) == "on"


def test_what_is_on_its_way_is_bounded() -> None:
    log = Log.open(None, max_age=0, pending_bytes=1 << 30)
    for number in range(200):
        log.append([row("t", bytes(100_000), session=5, number=number + 1)], 1000)
    log.flush()
    pair = Pair(log)
    pair.ask()
    sent = 0
    while (part := pair.origin.part()) is not None:
        sent += len(part.block)
    assert WINDOW <= sent < 2 * WINDOW
    number = pair.origin.logs["s"].number
    pair.origin.heard(Got(number, pair.origin.logs["s"].sent))
    assert pair.origin.part() is not None


def test_trouble_stops_one_stream_until_the_mirror_asks_again() -> None:
    pair = Pair(filled(100))
    pair.ask()
    pair.shelf.room = False
    part = pair.origin.part()
    assert part is not None
    trouble = pair.mirror.heard(part)
    assert isinstance(trouble, Trouble)
    assert "full" in trouble.text
    pair.origin.heard(trouble)
    add(pair.log, 10)
    assert pair.origin.part() is None
    assert furthest([pair.origin], "s") is None
    assert pair.origin.in_flight == 0
    assert list(pair.mirror.failed) == ["s"]
    pair.shelf.room = True
    ask = pair.mirror.ask_again()
    assert ask is not None
    assert not ask.all
    assert pair.answer(ask).how == "on"
    pair.run()
    assert content(pair.copy) == content(pair.log)
    assert pair.mirror.ask_again() is None


def test_what_bears_an_old_number_says_nothing() -> None:
    pair = Pair(filled(100))
    pair.ask()
    part = pair.origin.part()
    assert part is not None
    pair.ask()
    pair.tell(part)
    assert pair.copy.next == 0
    assert pair.origin.heard(Got(part.number, 100)) is None
    assert pair.origin.logs["s"].have == 0
    assert pair.origin.heard(Tail(part.number, b"")) is None


@pytest.mark.parametrize("known", [0, 1])
def test_a_stream_that_nobody_removed_is_put_aside(known) -> None:
    pair = Pair(filled(10))
    pair.ask()
    pair.run()
    assert pair.mirror.heard(Gone("s", removed=not known)) is None
    assert not pair.shelf.logs
    assert len(pair.shelf.aside) == known


def test_a_node_is_named_by_guid_name_or_address() -> None:
    node = ("0123", "one", ("tcp://10.0.0.1:7420",))
    assert wanted("0123", *node)
    assert wanted("one", *node)
    assert wanted("tcp://10.0.0.1:7420", *node)
    assert wanted("10.0.0.1:7420", *node)
    assert not wanted("10.0.0.1:7421", *node)
    assert not wanted("no:address:at all", *node)
    assert not wanted("other", *node)


def test_agreement_of_what_is_on_one_side_only() -> None:
    copy = filled(100)
    assert agrees(copy, Have(0, 0))
    assert agrees(copy, Have(50, 50))
    assert not agrees(copy, Have(0, 50, b"x" * 16))


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\x91\x01",
        pack(Got(1, 2))[:-1],
        pack(Ask({"s": Have(-1, 0)}, all=True)),
        pack(Ask({"s" * 74: None}, all=True)),
        pack(Offer(1, "../x", StreamConfig(name="../x", topics=("t",)), Have(0, 0), "on")),
        pack(Offer(1, "s", CONFIG, Have(0, 1 << 63), "on")),
        pack(Offer(1, "s", StreamConfig(name="s", topics=("t",), once=float("inf")), Have(0, 0), "on")),
        pack(Gone("../../streams", removed=True)),
    ],
)
def test_what_nobody_can_mean_is_strange(packed) -> None:
    with pytest.raises(Stranger):
        read(packed)


# Promises.


def test_acknowledgements_wait_for_the_mirror_and_not_for_ever() -> None:
    promise = AckWait(5.0, 0.0, expected=False)
    assert not promise.look(0.0, 10, None)
    assert not promise.active, "there was none"
    assert not promise.look(1.0, 10, 5)
    assert promise.look(2.0, 10, 10), "it has caught up"
    assert promise.active
    assert promise.deadline() is None
    assert not promise.look(3.0, 20, 10)
    assert promise.deadline() == 8.0
    assert not promise.look(4.0, 30, 15)
    assert promise.deadline() == 8.0, "some of the first still waits"
    assert not promise.look(7.0, 30, 20)
    assert promise.deadline() == 9.0
    assert promise.look(9.0, 30, 29), "the last of the second waited too long"
    assert not promise.active
    assert promise.look(10.0, 40, 40)
    assert promise.active


def test_a_mirror_that_is_gone_is_waited_for_once() -> None:
    promise = AckWait(5.0, 0.0, expected=False)
    promise.look(0.0, 10, 10)
    promise.look(1.0, 10, None)
    assert promise.active
    assert promise.deadline() == 6.0
    promise.look(5.0, 20, None)
    assert promise.active
    assert promise.look(6.0, 20, None)
    assert not promise.active
    assert promise.deadline() is None
    assert AckWait(5.0, 1.0, expected=True).deadline() == 6.0


# Many, by chance.


FAULTS = ("cut", "kill", "lost", "mirror killed", "mirror without power")


class Life:
    """A node and its mirror over many crashes and cuts; each word is carried by one of two queues."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.files = SimulatedFiles()
        self.log = Log.open(self.files, **LIMITS)
        self.older = None
        self.shelf = Shelf()
        self.numbers = count(1)
        self.sent = 0
        self.acknowledged = {}
        """By offset, what was acknowledged while the mirror was waited for."""
        self.open = []
        self.up = False
        self.resting = False
        self.now = 0.0
        self.promise = AckWait(5.0, 0.0, expected=False)
        self.origin = Primary(self.numbers)
        self.mirror = Replica(self.shelf)
        self.there, self.back = deque(), deque()
        self.faults = dict.fromkeys(FAULTS, 0)

    def connect(self):
        self.up = True
        self.origin = Primary(self.numbers)
        self.back.append(self.mirror.ask())

    def cut(self):
        self.up = False
        self.origin = Primary(self.numbers)
        self.there.clear()
        self.back.clear()

    def look(self):
        mirrored = furthest([self.origin], "s") if self.up else None
        self.promise.look(self.now, self.log.written, mirrored)
        if not self.promise.active:
            self.log.confirm(None)
        elif mirrored is not None:
            self.log.confirm(mirrored)
        while self.open and self.open[0][0] < self.log.safe:
            offset, known = self.open.pop(0)
            if self.promise.active:
                self.acknowledged[offset] = known
                copied = mark_at(self.shelf.logs["s"], offset)
                assert copied == known, "it was acknowledged before the mirror had it"

    def publish(self):
        if self.resting:
            return
        for _ in range(self.chance.randint(1, 20)):
            self.sent += 1
            self.log.append([row("t", bytes(self.chance.randint(0, 300)), session=5, number=self.sent)], self.sent)
        self.log.flush()
        while self.log.written > (at := self.open[-1][0] + 1 if self.open else self.log.safe):
            first, _, block = self.log.read_written(at, 1)
            self.open.append((first, mark(block)))

    def restart(self, files):
        self.cut()
        self.open.clear()
        self.files = files.survivor()
        self.log = Log.open(self.files, **LIMITS)
        self.promise = AckWait(5.0, self.now, expected=True)
        self.log.confirm(self.log.written)
        self.resting = True  # until the mirror was heard

    def one_word(self):
        queues = [queue for queue in (self.there, self.back) if queue]
        if not queues:
            return False
        queue = self.chance.choice(queues)
        word = queue.popleft()
        word = read(pack(word))
        if queue is self.there:
            if (answer := self.mirror.heard(word)) is not None:
                self.back.append(answer)
            if (got := self.mirror.written("s")) is not None:
                self.back.append(got)
        elif isinstance(word, Ask):
            self.there.append(self.origin.offer("s", CONFIG, self.log, word.have.get("s")))
        elif (answer := self.origin.heard(word)) is not None:
            self.there.append(answer)
        if (one := self.origin.logs.get("s")) is not None:
            self.resting = one.state in {"check", "back"}
        return True

    def whole(self):
        """The mirror has all: only then may a node lose its end, or both would have lost something."""
        return self.up and furthest([self.origin], "s") == self.log.written

    def step(self):
        self.now += self.chance.random() * 0.1
        match self.chance.choices(range(10), [15, 60, 40, 1, 0.5, 1, 0.5, 2, 5, 0.5])[0]:
            case 0:
                self.publish()
            case 1:
                self.one_word()
            case 2:
                if (part := self.origin.part() if self.up else None) is not None:
                    self.there.append(part)
            case 3 if self.up:
                self.faults["cut"] += 1
                self.cut()
            case 4:
                self.faults["kill"] += 1
                self.restart(self.files)
            case 5 if self.older is not None and self.promise.active and not self.resting and self.whole():
                # As after a power cut: the end is gone, also of what was acknowledged.
                self.faults["lost"] += 1
                self.restart(self.older)
            case 6:
                self.faults["mirror killed"] += 1
                self.cut()
                self.shelf.crash()
                self.mirror = Replica(self.shelf)
            case 9 if not self.resting:  # else both would have lost something
                self.faults["mirror without power"] += 1
                self.cut()
                self.shelf.crash(self.chance.randrange(1 << 30))
                self.mirror = Replica(self.shelf)
            case 7:
                self.older = self.files.survivor()
            case 8 if not self.up:
                self.connect()
        self.look()

    def finish(self):
        if not self.up:
            self.connect()
        while self.one_word() or ((part := self.origin.part()) is not None and not self.there.append(part)):
            self.look()
        self.look()


def test_whatever_happens_both_have_what_was_acknowledged() -> None:
    happened = dict.fromkeys(FAULTS, 0)
    acknowledged = 0
    for seed in range(100):
        life = Life(seed)
        for _ in range(400):
            life.step()
        life.finish()
        copy = life.shelf.logs["s"]
        assert content(copy, life.log.first) == content(life.log), f"seed {seed}"
        here = dict(content(life.log))
        assert {offset: here.get(offset) for offset in life.acknowledged} == life.acknowledged, f"seed {seed}"
        acknowledged += len(life.acknowledged)
        happened = {name: many + life.faults[name] for name, many in happened.items()}
    assert acknowledged > 1000
    assert all(happened.values()), happened
