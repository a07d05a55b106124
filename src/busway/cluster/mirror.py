"""The rules of a mirror: whether a copy and its stream agree, what is sent next, and what is done with it.

Machines, without sockets and clocks. They look into logs, and at most copy records into them.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Literal, Protocol

from busway.broker.lineage import Loss
from busway.broker.progress import Stamp
from busway.cluster.mending import Mending, shared
from busway.cluster.mirror_words import (
    MOST_HOLES,
    Ask,
    Changed,
    Checked,
    Gone,
    Got,
    Have,
    Noted,
    Number,
    Offer,
    Part,
    Recall,
    Tail,
    ToMirror,
    Trouble,
    Want,
    Word,
)
from busway.cluster.servers import ServersError, address_of
from busway.errors import DataFailed
from busway.streams import StreamConfig

PORTION: Final = 256 << 10
"""Bytes that are sent at once."""
WINDOW: Final = 4 << 20
"""Bytes that may be on their way to a mirror, or wait there to be written."""
_FLAGS: Final = 79
_GROUP: Final = 2
"""Set in a record while it is written; of one that was read before it is the same record."""


class Records(Protocol):
    """What the rules need of a `_core.Log`."""

    @property
    def first(self) -> int: ...
    @property
    def next(self) -> int: ...
    @property
    def written(self) -> int: ...
    @property
    def damage(self) -> list[tuple[str, int, int, int | None, str]]: ...
    def read_written(self, offset: int, most: int) -> tuple[int, int, bytes]: ...
    def copy(self, block: bytes) -> bool: ...
    def mend(self, block: bytes) -> int: ...
    def mended(self) -> None: ...


def mark(block: bytes) -> bytes:
    """By what the first record of a block is known again."""
    size = int.from_bytes(block[:4], "little") + 4
    record = bytearray(block[8:size])
    record[_FLAGS - 8] &= ~_GROUP
    return blake2b(record, digest_size=16).digest()


def mark_at(log: Records, offset: int) -> bytes:
    """The mark of the record with this offset; nothing if it is not there."""
    first, _, block = log.read_written(offset, 1) if offset >= 0 else (0, 0, b"")
    return mark(block) if block and first == offset else b""


def has_any(log: Records, begin: int, end: int) -> bool:
    """Whether there is a record from `begin` to before `end`."""
    first, _, block = log.read_written(begin, 1)
    return bool(block) and first < end


def have(log: Records) -> Have:
    """What there is of a copy or a stream. Too many holes are told as if nothing was there, so that a copy is made anew."""
    first, written = min(log.first, log.written), log.written
    holes = {(begin, end) for _, _, begin, end, _ in log.damage if end is not None and end > begin and end > first}
    if len(holes) > MOST_HOLES:
        return Have(written, written)
    return Have(first, written, mark_at(log, written - 1), tuple(sorted(holes)))


def ends_in_hole(copy: Have, mine: Have) -> bool:
    """Whether the last record of a copy is one that the stream has lost, so that they can't be compared there."""
    return any(begin < copy.next <= end for begin, end in mine.holes)


def judge(here: Records, mine: Have, copy: Have) -> Literal["on", "anew", "check"]:
    """Whether a copy may go on where it is. What the stream has no more need not agree."""
    if copy.next > here.written:
        return "check"
    known = copy.next > max(here.first, copy.first) and not ends_in_hole(copy, mine)
    if known and mark_at(here, copy.next - 1) != copy.mark:
        return "anew"
    gaps = [(begin, min(end, copy.next)) for begin, end in (*copy.holes, (here.first, copy.first))]
    if any(has_any(here, max(begin, here.first), end) for begin, end in gaps if end > max(begin, here.first)):
        return "anew"
    return "on"


def agrees(copy: Records, origin: Have) -> bool:
    """Whether a copy that has more than its stream agrees with it up to the end of that."""
    if origin.next <= max(origin.first, copy.first):
        return True  # nothing of it is on both sides
    return mark_at(copy, origin.next - 1) == origin.mark


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
    mending: Mending
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


class Origin:
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
        mending = Mending(log, holes, trusted=copy is None or not ends_in_hole(copy, mine))
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


class Copied(Records, Protocol):
    """The log of a copy."""

    def trim_to(self, first: int) -> tuple[int, int, int]: ...


class Shelf(Protocol):
    """Where a mirror has its copies of one node. What can't be done raises DataFailed."""

    def names(self) -> Iterable[str]: ...
    def find(self, name: str) -> Copied | None: ...
    def make(self, config: StreamConfig, begin: int) -> Copied:
        """A new copy; one that is there is put aside."""

    def configure(self, config: StreamConfig) -> None: ...
    def remove(self, name: str, *, keep: bool) -> None:
        """It is no copy of anything any more. `keep`: put it aside."""

    def note(self, name: str, noted: Noted) -> None: ...
    def noted(self, name: str) -> Stamp | None:
        """How far what its channels noted is known."""

    def check_room(self, size: int) -> None: ...


class Mirror:
    """What a mirror does with what its node sends."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._names: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self.ahead: dict[str, int] = {}
        """How far each stream goes, as far as that was told."""
        self.failed: dict[str, str] = {}
        """Streams that can't be copied now, and why."""

    def ask(self) -> Ask:
        """There is a link to the node."""
        self._names.clear()
        self._numbers.clear()
        self.failed.clear()
        return self._ask(self._shelf.names(), all_=True)

    def ask_again(self) -> Ask | None:
        """For those that failed."""
        names = list(self.failed)
        self.failed.clear()
        return self._ask(names, all_=False) if names else None

    def ask_for(self, name: str) -> Ask:
        """For one that is not as it was thought to be."""
        self._forget(name)
        return self._ask([name], all_=False)

    def _ask(self, names: Iterable[str], *, all_: bool) -> Ask:
        logs = {name: self._shelf.find(name) for name in names}
        noted = {name: stamp for name in logs if (stamp := self._shelf.noted(name)) is not None}
        return Ask({name: None if log is None else have(log) for name, log in logs.items()}, all_, noted)

    def heard(self, word: ToMirror) -> Word | None:
        """What the node says; what it is told at once."""
        number = None if isinstance(word, Gone) else word.number
        try:
            match word:
                case Offer():
                    return self._offered(word)
                case Gone(name=name, removed=removed):
                    self._forget(name)
                    self._shelf.remove(name, keep=not removed)
                case _ if (name := self._names.get(word.number, "")) and (log := self._shelf.find(name)):
                    return self._given(name, log, word)
        except (DataFailed, ValueError) as error:
            if number is None:
                raise
            return self.fail(number, str(error))
        return None

    def _offered(self, offer: Offer) -> Word | None:
        config, origin = offer.config, offer.have
        name, log = config.name, self._shelf.find(config.name)
        self._forget(name)
        self._names[offer.number], self._numbers[name] = name, offer.number
        answer = None
        if offer.how == "check" and log is not None:
            answer = Checked(offer.number, same := agrees(log, origin))
            log = log if same else None
        if offer.how == "anew" or log is None:
            if offer.how == "on" and origin.next > origin.first:
                raise ValueError("the copy is gone meanwhile")
            log = self._shelf.make(config, origin.first)
        else:
            self._shelf.configure(config)
        if offer.how == "on":
            log.trim_to(origin.first)
        self._told[name] = log.written
        self.ahead[name] = origin.next
        return answer

    def _given(self, name: str, log: Copied, word: Part | Noted | Want | Changed | Recall) -> Word | None:
        match word:
            case Part(block=block, first=first, ahead=ahead):
                self.ahead[name] = ahead
                if block:
                    self._shelf.check_room(len(block))
                    if not log.copy(block):
                        raise ValueError("too much waits to be written")
                if first > log.first:
                    log.trim_to(first)
            case Noted():
                self._shelf.note(name, word)
            case Changed(config=config) if config.name == name:
                self._shelf.configure(config)
            case Want(offset=offset):
                return Tail(word.number, log.read_written(offset, PORTION)[2])
        return None

    def name(self, number: int) -> str | None:
        """Of which stream a number speaks."""
        return self._names.get(number)

    def written(self, name: str) -> Got | None:
        """More of a copy may be written."""
        number, log = self._numbers.get(name), self._shelf.find(name)
        if number is None or log is None or log.written <= self._told[name]:
            return None
        self._told[name] = log.written
        return Got(number, log.written)

    def fail(self, number: int, why: str) -> Trouble | None:
        """A stream can't be copied now."""
        if (name := self._names.get(number)) is None:
            return None
        self._forget(name)
        self.failed[name] = why
        return Trouble(number, why[:1000])

    def fail_stream(self, name: str, why: str) -> Trouble | None:
        number = self._numbers.get(name)
        return None if number is None else self.fail(number, why)

    def _forget(self, name: str) -> None:
        if (number := self._numbers.pop(name, None)) is not None:
            del self._names[number]


def wanted(target: str, guid: str, name: str, addresses: Iterable[str]) -> bool:
    """Whether a node is the one that is to be mirrored, which is given by its guid, its name or an address."""
    if target in (guid, name, *addresses):
        return True
    return ":" in target and (meant := _address(target)) is not None and meant in map(_address, addresses)


def _address(text: str) -> str | None:
    """The same for all ways to write it; None: it is no address of another process."""
    try:
        return address_of(text)
    except ServersError:
        return None
