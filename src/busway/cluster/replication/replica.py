"""What a mirror does with what its node sends.

A machine, without sockets and clocks; `origin` is the other side. It looks into logs, and at most copies records into them.
"""

from collections.abc import Iterable
from typing import Protocol

from busway.broker.channels.state.progress import Stamp
from busway.cluster.members.servers_file import ServersError, address_of
from busway.cluster.replication.compare import Records, agrees, have
from busway.cluster.replication.messages import (
    PORTION,
    Ask,
    Changed,
    Checked,
    Gone,
    Got,
    Noted,
    Offer,
    Part,
    Recall,
    Tail,
    ToMirror,
    Trouble,
    Want,
    Word,
)
from busway.errors import DataFailed
from busway.streams import StreamConfig


class Copied(Records, Protocol):
    """The log of a copy."""

    def trim_to(self, first: int) -> tuple[int, int, int]: ...


class CopyStore(Protocol):
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


class Replica:
    """What a mirror does with what its node sends."""

    def __init__(self, shelf: CopyStore) -> None:
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
