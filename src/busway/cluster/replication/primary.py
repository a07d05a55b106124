"""What a node sends to a mirror next, and what it gets back of what it has lost.

A machine, without sockets and clocks; `mirror` is the other side. It looks into logs, and at most copies records into them.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from busway.broker.channels.journal_identity import Loss
from busway.cluster.replication.compare import Records, ends_in_hole, have, judge, mark, mark_at
from busway.cluster.replication.messages import (
    PORTION,
    Checked,
    Got,
    Have,
    Number,
    Offer,
    Part,
    Tail,
    Trouble,
    Want,
    Word,
)
from busway.errors import DataFailed
from busway.streams import StreamConfig


class Holed(Protocol):
    """What is needed of a `_core.Log`."""

    def mend(self, block: bytes) -> int: ...


class Repair:
    """The holes of one stream that its mirror may have something of.

    If nothing else shows that the copy is one of this stream, the record before a hole has to be the same on both sides. Before the first
    record of a stream there is none.
    """

    def __init__(self, log: Holed, holes: Iterable[tuple[int, int]], *, trusted: bool) -> None:
        self._log = log
        self._holes = sorted(holes, reverse=True)
        self._trusted = trusted
        self.count = 0
        """Records that are back."""
        self.left = 0
        """Records that the mirror did not have, or that are none of this log."""

    def __bool__(self) -> bool:
        return bool(self._holes)

    @property
    def witness(self) -> int | None:
        """The offset of a record that has to be the same on both sides before anything is taken."""
        return None if self._trusted or not self._holes or self._holes[-1][0] == 0 else self._holes[-1][0] - 1

    @property
    def wanted(self) -> int:
        """The offset from which on records are wanted."""
        return self._holes[-1][0] if self.witness is None else self._holes[-1][0] - 1

    def trust(self) -> None:
        """The witness is the same."""
        self._trusted = True

    def heard(self, block: bytes) -> None:
        """What the mirror has from there on. What it lacks, or does not fit, stays a hole. Raises DataFailed if it can't be written now."""
        begin, end = self._holes[-1]
        count = self._log.mend(block) if block else 0
        self._holes.pop()
        self.count += count
        if not count:
            self.left += end - begin
        elif begin + count < end:
            self._holes.append((begin + count, end))


def shared(holes: Iterable[tuple[int, int]], copy: Have) -> list[tuple[int, int]]:
    """Those that begin with something that the copy may have."""
    return [
        (begin, end)
        for begin, end in holes
        if copy.first <= begin < copy.next and not any(low <= begin < high for low, high in copy.holes)
    ]


WINDOW: Final = 4 << 20
"""Bytes that may be on their way to a mirror, or wait there to be written."""


@dataclass(slots=True)
class Sending:
    """One stream on its way to one mirror."""

    config: StreamConfig
    log: Records
    number: int
    state: Literal["check", "mending", "back", "copying", "stopped", "unreadable"]
    """Mending, back: the node has lost something in its midst, or its end, and gets it back; nothing new must come in its place."""
    sent: int
    have: int
    offered: int
    """Where the stream ended when it was offered."""
    mending: Repair
    longer: bool = False
    """The mirror has more than the stream."""
    back: int = 0
    """Up to here it has come back."""
    whole: bool = False
    """That was all, and waits to be written."""
    stalled: bool = False
    """What came back could not be written, and is asked for again later."""
    returned: int = 0
    """So many messages of its end are back."""
    recall: Loss = ""
    """What its channels noted is lost, or the last of it, and the mirror knows more. It is asked for when the records are here."""
    recalling: bool = False
    """It is asked for."""
    noting: bool = False
    """The mirror hears of its channels."""
    first: int = 0
    flight: deque[tuple[int, int]] = field(default_factory=deque)
    why: str = ""

    @property
    def open(self) -> bool:
        return self.state == "copying"


class Primary:
    """What a node sends to one mirror. Numbers are never given twice."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self.streams: dict[str, Sending] = {}
        self._by_number: dict[int, Sending] = {}
        self._turn: deque[str] = deque()
        self.flying = 0

    def offer(self, config: StreamConfig, log: Records, copy: Have | None) -> Offer:
        """A stream, and what the mirror says to have of it."""
        self.drop(config.name)
        mine = have(log)
        how = "anew" if copy is None else judge(log, mine, copy)
        if how == "check" and config.store == "memory":
            how = "anew"  # such a stream ends with its broker
        begin = max(copy.next, mine.first) if copy is not None and how == "on" else mine.first
        holes = [] if copy is None or how == "anew" else shared(mine.holes, copy)
        mending = Repair(log, holes, trusted=copy is None or not ends_in_hole(copy, mine))
        sending = Sending(
            config, log, next(self._numbers), "copying", begin, begin, mine.next, mending, first=mine.first
        )
        if how == "check":
            sending.state, sending.longer = "check", True
        elif mending:
            sending.state = "mending"
        self.streams[config.name] = self._by_number[sending.number] = sending
        self._turn.append(config.name)
        return Offer(sending.number, config, mine, how)

    def want(self, name: str) -> Want | None:
        """What is asked for as soon as a stream was offered."""
        sending = self.streams[name]
        return Want(sending.number, sending.mending.wanted) if sending.state == "mending" else None

    def drop(self, name: str) -> None:
        """It is not copied, or not under its number."""
        if (sending := self.streams.pop(name, None)) is not None:
            del self._by_number[sending.number]
            self._turn.remove(name)
            self.flying -= sum(size for _, size in sending.flight)

    def find(self, number: Number) -> Sending | None:
        return self._by_number.get(number)

    def part(self) -> Part | None:
        """What is sent next; None: nothing, or enough is on its way. Streams take turns."""
        for _ in range(len(self._turn)):
            name = self._turn[0]
            self._turn.rotate(-1)
            sending = self.streams[name]
            if not sending.open or self.flying >= WINDOW:
                continue
            try:
                part = self._next(sending)
            except DataFailed as error:
                sending.state, sending.why = "unreadable", error.reason
                continue
            if part is not None:
                return part
        return None

    def again(self) -> list[Word]:
        """What could not be read or written may be so now; what the mirror is told."""
        words = []
        for sending in self.streams.values():
            if sending.state == "unreadable":
                sending.state = "copying"
            self.settle(sending)
            if sending.stalled:
                sending.stalled = False
                words.append(self._go_on(sending))
        return [word for word in words if word is not None]

    def settle(self, sending: Sending) -> None:
        """What came back may be written now, or lost again: then it stays in its state until that is so."""
        if sending.state != "back" or sending.stalled:
            return
        if sending.log.next < sending.back:
            self._stall(sending, "what came back could not be written")
        elif sending.whole and sending.log.written >= sending.back:
            sending.state, sending.whole = "copying", False
            sending.sent = sending.have = sending.log.next
            sending.returned = sending.log.next - sending.offered

    def _stall(self, sending: Sending, why: str) -> None:
        sending.stalled, sending.back, sending.whole, sending.why = True, 0, False, why

    def _next(self, sending: Sending) -> Part | None:
        log = sending.log
        _, end, block = log.read_written(sending.sent, PORTION)
        if not block and log.first <= sending.first:
            return None
        if block:
            sending.flight.append((end, len(block)))
            self.flying += len(block)
            sending.sent = end
        # Read now: what went meanwhile was not sent.
        sending.first = max(sending.first, min(log.first, sending.sent))
        if not block and sending.first < log.first:
            sending.sent = sending.have = sending.first = log.first
        return Part(sending.number, sending.first, sending.sent, max(log.written, sending.sent), block)

    def heard(self, word: Got | Trouble | Checked | Tail) -> Word | None:
        """What the mirror says of a stream; what it is told at once."""
        if (sending := self._by_number.get(word.number)) is None:
            return None
        match word:
            case Got(next=upto):
                sending.have = max(sending.have, min(upto, sending.sent))
                while sending.flight and sending.flight[0][0] <= upto:
                    self.flying -= sending.flight.popleft()[1]
            case Trouble(text=text):
                self.flying -= sum(size for _, size in sending.flight)
                sending.flight.clear()
                sending.state, sending.why = "stopped", text
            case Checked(agrees=same) if sending.state == "check":
                return self._checked(sending, same=same)
            case Tail(block=block) if sending.state in {"mending", "back"} and not sending.stalled:
                try:
                    return self._mended(sending, block) if sending.state == "mending" else self._back(sending, block)
                except DataFailed as error:
                    self._stall(sending, error.reason)
        return None

    def _checked(self, sending: Sending, *, same: bool) -> Word | None:
        log = sending.log
        if not same:
            sending.state, sending.recall = "copying", ""  # of other messages than those that are here
            return None
        if log.next > sending.offered:  # something new has come in the place of what was lost
            return self.offer(sending.config, log, None)
        return self._go_on(sending)

    def _go_on(self, sending: Sending) -> Word | None:
        """With what is missing still: first what lies in the midst."""
        if sending.mending:
            sending.state = "mending"
            return Want(sending.number, sending.mending.wanted)
        if sending.longer:
            sending.state = "back"
            return Want(sending.number, sending.log.next)
        sending.state = "copying"
        return None

    def _mended(self, sending: Sending, block: bytes) -> Word | None:
        if (witness := sending.mending.witness) is not None:
            if not block or mark_at(sending.log, witness) != mark(block):
                return self.offer(sending.config, sending.log, None)
            sending.mending.trust()
        else:
            sending.mending.heard(block)
            if not sending.mending:
                sending.log.mended()
        return self._go_on(sending)

    def _back(self, sending: Sending, block: bytes) -> Word | None:
        log = sending.log
        if block and log.next >= sending.back:
            try:
                log.copy(block)
            except ValueError:  # the same, or nothing that could follow
                return self.offer(sending.config, log, None)
            sending.back = log.next
            return Want(sending.number, log.next)
        sending.whole = not block
        self.settle(sending)
        return None


_STEP: Final = 0.05
"""Seconds that are told apart when it is seen how long something waits."""


class Promise:
    """Whether the acknowledgements of a stream wait for its mirror: none longer than `wait`, and none while nobody can be waited for."""

    def __init__(self, wait: float, now: float, *, hopeful: bool) -> None:
        self._wait = wait
        self.kept = hopeful
        """Acknowledgements wait."""
        self._gone: float | None = now if hopeful else None
        self._open: deque[tuple[int, float]] = deque()
        """Ends of what was written, and since when."""

    def look(self, now: float, written: int, mirrored: int | None) -> bool:
        """How far the stream goes, and how far its mirror has it; None: there is none that copies. Whether `kept` has changed."""
        before = self.kept
        if mirrored is None:
            self._gone = now if self._gone is None else self._gone
        else:
            self._gone = None
            while self._open and self._open[0][0] <= mirrored:
                self._open.popleft()
            if not self.kept and mirrored >= written:
                self.kept = True
        last = self._open[-1] if self._open else None
        if written > (last[0] if last else -1 if mirrored is None else mirrored):
            if last is not None and now - last[1] < _STEP:
                self._open[-1] = written, last[1]
            else:
                self._open.append((written, now))
        if (due := self.deadline()) is not None and now >= due:
            self.kept = False
        if not self.kept:
            self._open.clear()
        return self.kept is not before

    def deadline(self) -> float | None:
        """When nobody is waited for any longer."""
        if not self.kept:
            return None
        since = [one for one in (self._gone, self._open[0][1] if self._open else None) if one is not None]
        return min(since) + self._wait if since else None


def furthest(origins: Iterable[Primary], name: str) -> int | None:
    """How far any mirror has a stream; None: none copies it."""
    found = [one.have for origin in origins if (one := origin.streams.get(name)) is not None and one.open]
    return max(found, default=None)
