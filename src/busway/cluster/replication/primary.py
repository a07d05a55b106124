"""The rules of the primary: which message it sends to a mirror next, and which lost records it restores from there.

`primary_driver` calls it; `replica` is the other side. Without sockets and clocks. It reads logs and may copy records
into them.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

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


class RepairableLog(Protocol):
    """The part of a `_core.Log` that a repair uses."""

    def mend(self, block: bytes) -> int: ...


class Repair:
    """The holes of one stream that its mirror may be able to fill.

    Unless the replica is known to match the stream, the record before a hole must be the same on both sides. Nothing
    can be compared for a hole at offset 0.
    """

    def __init__(self, log: RepairableLog, holes: Iterable[tuple[int, int]], *, trusted: bool) -> None:
        self._log = log
        self._holes = sorted(holes, reverse=True)
        self._trusted = trusted
        self.count = 0
        """Restored records."""
        self.left = 0
        """Records that the mirror did not have, or that do not fit into this log."""

    def __bool__(self) -> bool:
        return bool(self._holes)

    @property
    def witness(self) -> int | None:
        """The offset of the record to compare before records are restored; None: not needed."""
        return None if self._trusted or not self._holes or self._holes[-1][0] == 0 else self._holes[-1][0] - 1

    @property
    def wanted(self) -> int:
        """The offset of the first record to ask for."""
        return self._holes[-1][0] if self.witness is None else self._holes[-1][0] - 1

    def trust(self) -> None:
        """The compared record is the same on both sides."""
        self._trusted = True

    def heard(self, block: bytes) -> None:
        """Fill the next hole from the mirror's records, as far as it has them. Raises DataFailed if writing fails."""
        begin, end = self._holes[-1]
        count = self._log.mend(block) if block else 0
        self._holes.pop()
        self.count += count
        if not count:
            self.left += end - begin
        elif begin + count < end:
            self._holes.append((begin + count, end))


def shared(holes: Iterable[tuple[int, int]], copy: Have) -> list[tuple[int, int]]:
    """The holes whose first record the replica may have."""
    return [
        (begin, end)
        for begin, end in holes
        if copy.first <= begin < copy.next and not any(low <= begin < high for low, high in copy.holes)
    ]


WINDOW: Final = 4 << 20
"""Bytes in flight: sent to a mirror that has not confirmed that it wrote them."""


@dataclass(slots=True)
class Sending:
    """The transfer of one log to one mirror."""

    name: str
    config: StreamConfig
    log: Records
    number: int
    state: Literal["check", "mending", "back", "copying", "stopped", "unreadable"]
    """In "mending" and "back" the node restores a hole or its lost end, and no new record may take their place."""
    sent: int
    have: int
    offered: int
    """The end of the log when it was offered."""
    repair: Repair
    longer: bool = False
    """The mirror has more than the log."""
    restored_end: int = 0
    """The end of the records restored so far."""
    fully_restored: bool = False
    """All records of the lost end are here and wait to be written."""
    stalled: bool = False
    """Restored records could not be written. The node asks for them again later."""
    restored_count: int = 0
    """Number of records restored at the end of the log."""
    copy_first: int = 0
    """The first offset of the replica when the log was offered."""
    first: int = 0
    flight: deque[tuple[int, int]] = field(default_factory=deque)
    why: str = ""

    @property
    def open(self) -> bool:
        return self.state == "copying"

    @property
    def restores(self) -> bool:
        """Whether lost records may come back from the mirror."""
        return self.state in {"check", "mending", "back"}


class Primary:
    """The logs that a node sends to one mirror. `numbers` never repeats a number."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self.logs: dict[str, Sending] = {}
        self._by_number: dict[int, Sending] = {}
        self._rotation: deque[str] = deque()
        self.in_flight = 0

    def offer(self, name: str, config: StreamConfig, log: Records, copy: Have | None) -> Offer:
        """Start to send a log. `copy`: the records that the mirror already has."""
        self.drop(name)
        mine = have(log)
        how = "anew" if copy is None else judge(log, mine, copy)
        if how == "check" and config.store == "memory":
            how = "anew"  # such a stream ends with its broker
        begin = max(copy.next, mine.first) if copy is not None and how == "on" else mine.first
        holes = [] if copy is None or how == "anew" else shared(mine.holes, copy)
        repair = Repair(log, holes, trusted=copy is None or not ends_in_hole(copy, mine))
        number = next(self._numbers)
        sending = Sending(name, config, log, number, "copying", begin, begin, mine.next, repair, first=mine.first)
        if how == "check":
            sending.state, sending.longer = "check", True
            sending.copy_first = mine.next if copy is None else copy.first
        elif repair:
            sending.state = "mending"
        self.logs[name] = self._by_number[number] = sending
        self._rotation.append(name)
        return Offer(number, name, config, mine, how)

    def want(self, name: str) -> Want | None:
        """The records to ask for right after the offer, if the log has holes to repair."""
        sending = self.logs[name]
        return Want(sending.number, sending.repair.wanted) if sending.state == "mending" else None

    def drop(self, name: str) -> None:
        """Stop sending a log under its number."""
        if (sending := self.logs.pop(name, None)) is not None:
            del self._by_number[sending.number]
            self._rotation.remove(name)
            self.in_flight -= sum(size for _, size in sending.flight)

    def find(self, number: Number) -> Sending | None:
        return self._by_number.get(number)

    def part(self) -> Part | None:
        """The next block to send, round-robin over the logs; None: no records, or the window is full."""
        for _ in range(len(self._rotation)):
            name = self._rotation[0]
            self._rotation.rotate(-1)
            sending = self.logs[name]
            if not sending.open or self.in_flight >= WINDOW:
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
        """Retry logs that could not be read or written. Returns messages for the mirror."""
        words = []
        for sending in self.logs.values():
            if sending.state == "unreadable":
                sending.state = "copying"
            self.settle(sending)
            if sending.stalled:
                sending.stalled = False
                words.append(self._continue(sending))
        return [word for word in words if word is not None]

    def settle(self, sending: Sending) -> None:
        """Check whether the restored end is written. If it was lost again, it is retried."""
        if sending.state != "back" or sending.stalled:
            return
        if sending.log.next < sending.restored_end:
            self._stall(sending, "restored records could not be written")
        elif sending.fully_restored and sending.log.written >= sending.restored_end:
            sending.state, sending.fully_restored = "copying", False
            sending.sent = sending.have = sending.log.next
            sending.restored_count = sending.log.next - sending.offered

    def _stall(self, sending: Sending, why: str) -> None:
        sending.stalled, sending.restored_end, sending.fully_restored, sending.why = True, 0, False, why

    def _next(self, sending: Sending) -> Part | None:
        log = sending.log
        _, end, block = log.read_written(sending.sent, PORTION)
        if not block and log.first <= sending.first:
            return None
        if block:
            sending.flight.append((end, len(block)))
            self.in_flight += len(block)
            sending.sent = end
        # Read log.first again: records that were dropped during the read were not sent.
        sending.first = max(sending.first, min(log.first, sending.sent))
        if not block and sending.first < log.first:
            sending.sent = sending.have = sending.first = log.first
        return Part(sending.number, sending.first, sending.sent, max(log.written, sending.sent), block)

    def heard(self, word: Got | Trouble | Checked | Tail) -> Word | None:
        """Handle a message of the mirror about a log. Returns the answer, if any."""
        if (sending := self._by_number.get(word.number)) is None:
            return None
        match word:
            case Got(next=upto):
                sending.have = max(sending.have, min(upto, sending.sent))
                while sending.flight and sending.flight[0][0] <= upto:
                    self.in_flight -= sending.flight.popleft()[1]
            case Trouble(text=text):
                self.in_flight -= sum(size for _, size in sending.flight)
                sending.flight.clear()
                sending.state, sending.why = "stopped", text
            case Checked(agrees=same) if sending.state == "check":
                return self._checked(sending, same=same)
            case Tail(block=block) if sending.state in {"mending", "back"} and not sending.stalled:
                try:
                    return (
                        self._repaired(sending, block) if sending.state == "mending" else self._restored(sending, block)
                    )
                except DataFailed as error:
                    self._stall(sending, error.reason)
        return None

    def _checked(self, sending: Sending, *, same: bool) -> Word | None:
        log = sending.log
        if not same:
            sending.state = "copying"  # the replica has other records
            return None
        if log.next > sending.offered:  # new records have taken the place of the lost ones
            return self.offer(sending.name, sending.config, log, None)
        if log.first == log.next < sending.copy_first:  # all records are lost
            log.trim_to(sending.copy_first)
        return self._continue(sending)

    def _continue(self, sending: Sending) -> Word | None:
        """Ask for missing records, holes first, or start to copy."""
        if sending.repair:
            sending.state = "mending"
            return Want(sending.number, sending.repair.wanted)
        if sending.longer:
            sending.state = "back"
            return Want(sending.number, sending.log.next)
        sending.state = "copying"
        return None

    def _repaired(self, sending: Sending, block: bytes) -> Word | None:
        if (witness := sending.repair.witness) is not None:
            if not block or mark_at(sending.log, witness) != mark(block):
                return self.offer(sending.name, sending.config, sending.log, None)
            sending.repair.trust()
        else:
            sending.repair.heard(block)
            if not sending.repair:
                sending.log.mended()
        return self._continue(sending)

    def _restored(self, sending: Sending, block: bytes) -> Word | None:
        log = sending.log
        if block and log.next >= sending.restored_end:
            try:
                log.copy(block)
            except ValueError:  # the block is a duplicate, or does not follow the log's end
                return self.offer(sending.name, sending.config, log, None)
            sending.restored_end = log.next
            return Want(sending.number, log.next)
        sending.fully_restored = not block
        self.settle(sending)
        return None


_STEP: Final = 0.05
"""Resolution of waiting times, in seconds."""


class AckWait:
    """Whether acknowledgements wait until a mirror has the records of a log, and how long: `wait` seconds at most.

    `expected`: a mirror is known from before.
    """

    def __init__(self, wait: float, now: float, *, expected: bool) -> None:
        self._wait = wait
        self.active = expected
        """Whether acknowledgements wait."""
        self._missing_since: float | None = now if expected else None
        self._unmirrored: deque[tuple[int, float]] = deque()
        """Ends of written records that the mirror lacks, and when they were written."""

    def look(self, now: float, written: int, mirrored: int | None) -> bool:
        """Update the written ends of stream and replica (None: no replica). Returns whether `active` changed."""
        before = self.active
        if mirrored is None:
            self._missing_since = now if self._missing_since is None else self._missing_since
        else:
            self._missing_since = None
            while self._unmirrored and self._unmirrored[0][0] <= mirrored:
                self._unmirrored.popleft()
            if not self.active and mirrored >= written:
                self.active = True
        last = self._unmirrored[-1] if self._unmirrored else None
        if written > (last[0] if last else -1 if mirrored is None else mirrored):
            if last is not None and now - last[1] < _STEP:
                self._unmirrored[-1] = written, last[1]
            else:
                self._unmirrored.append((written, now))
        if (due := self.deadline()) is not None and now >= due:
            self.active = False
        if not self.active:
            self._unmirrored.clear()
        return self.active is not before

    def deadline(self) -> float | None:
        """When acknowledgements stop waiting."""
        if not self.active:
            return None
        starts = [
            at for at in (self._missing_since, self._unmirrored[0][1] if self._unmirrored else None) if at is not None
        ]
        return min(starts) + self._wait if starts else None


def furthest(primaries: Iterable[Primary], name: str) -> int | None:
    """The largest end of a log at any mirror; None: no mirror copies it."""
    sendings = [sending for primary in primaries if (sending := primary.logs.get(name)) is not None]
    return max((sending.have for sending in sendings if sending.open), default=None)
