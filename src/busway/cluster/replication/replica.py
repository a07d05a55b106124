"""The rules of the mirror: how it handles the messages of its primary, and what it answers.

`replica_driver` calls it; `primary` is the other side. Without sockets and clocks. It reads logs and may copy records
into them.
"""

from collections.abc import Iterable
from typing import Protocol

from busway.cluster.members.servers_file import ServersError, address_of
from busway.cluster.replication.compare import Records, agrees, have
from busway.cluster.replication.messages import (
    PORTION,
    Ask,
    Changed,
    Checked,
    Gone,
    Got,
    Offer,
    Part,
    Tail,
    ToMirror,
    Trouble,
    Want,
    Word,
    progress_of,
)
from busway.errors import DataFailed
from busway.streams import StreamConfig


class CopyStore(Protocol):
    """The replicas of one primary's logs on the disk of the mirror. Failures raise DataFailed."""

    def names(self) -> Iterable[str]: ...
    def find(self, log: str) -> Records | None: ...
    def make(self, log: str, config: StreamConfig, begin: int) -> Records:
        """Create the replica of a log. An existing one is put aside."""

    def configure(self, config: StreamConfig) -> None: ...
    def remove(self, stream: str, *, keep: bool) -> None:
        """Remove the replicas of a stream. `keep`: put them aside instead of deleting them."""

    def check_room(self, size: int) -> None: ...


class Replica:
    """The mirror's side of replication with one primary."""

    def __init__(self, shelf: CopyStore) -> None:
        self._store = shelf
        self._names: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._reported: dict[str, int] = {}
        self.ahead: dict[str, int] = {}
        """The last known end of each log at the primary."""
        self.failed: dict[str, str] = {}
        """Logs that can't be copied now, with the reason."""

    def ask(self) -> Ask:
        """A link to the primary is open: ask for all logs."""
        self._names.clear()
        self._numbers.clear()
        self.failed.clear()
        return self._ask(self._store.names(), every=True)

    def ask_again(self) -> Ask | None:
        """Ask again for logs that failed; None: there are none."""
        names = list(self.failed)
        self.failed.clear()
        return self._ask(names, every=False) if names else None

    def ask_for(self, name: str) -> Ask:
        """Ask again for one log whose replica turned out to have holes."""
        self._forget(name)
        return self._ask([name], every=False)

    def _ask(self, names: Iterable[str], *, every: bool) -> Ask:
        logs = {name: self._store.find(name) for name in names}
        return Ask({name: None if log is None else have(log) for name, log in logs.items()}, every)

    def heard(self, word: ToMirror) -> Word | None:
        """Handle a message of the primary. Returns the answer, if any."""
        number = None if isinstance(word, Gone) else word.number
        try:
            match word:
                case Offer():
                    return self._offered(word)
                case Gone(name=name, removed=removed):
                    self._forget(name)
                    self._forget(progress_of(name))
                    self._store.remove(name, keep=not removed)
                case _ if (name := self._names.get(word.number, "")) and (log := self._store.find(name)):
                    return self._apply(name, log, word)
        except (DataFailed, ValueError) as error:
            if number is None:
                raise
            return self.fail(number, str(error))
        return None

    def _offered(self, offer: Offer) -> Word | None:
        config, origin = offer.config, offer.have
        name, log = offer.log, self._store.find(offer.log)
        self._forget(name)
        self._names[offer.number], self._numbers[name] = name, offer.number
        answer = None
        if offer.how == "check" and log is not None:
            answer = Checked(offer.number, matches := agrees(log, origin))
            log = log if matches else None
        if offer.how == "anew" or log is None:
            if offer.how == "on" and origin.next > origin.first:
                raise ValueError("the replica was removed before the primary continued it")
            log = self._store.make(name, config, origin.first)
        else:
            self._store.configure(config)
        if offer.how == "on":
            log.trim_to(origin.first)
        self._reported[name] = log.written
        self.ahead[name] = origin.next
        return answer

    def _apply(self, name: str, log: Records, word: Part | Want | Changed) -> Word | None:
        match word:
            case Part(block=block, first=first, ahead=ahead):
                self.ahead[name] = ahead
                if block:
                    self._store.check_room(len(block))
                    if not log.copy(block):
                        raise ValueError("too many records wait to be written")
                if first > log.first:
                    log.trim_to(first)
            case Changed(config=config) if config.name == name:
                self._store.configure(config)
            case Want(offset=offset):
                return Tail(word.number, log.read_written(offset, PORTION)[2])
        return None

    def name(self, number: int) -> str | None:
        """The name of the log with this number."""
        return self._names.get(number)

    def written(self, name: str) -> Got | None:
        """Report the end of a replica, if it has written more."""
        number, log = self._numbers.get(name), self._store.find(name)
        if number is None or log is None or log.written <= self._reported[name]:
            return None
        self._reported[name] = log.written
        return Got(number, log.written)

    def fail(self, number: int, reason: str) -> Trouble | None:
        """Record that a log can't be copied now, and report why."""
        if (name := self._names.get(number)) is None:
            return None
        self._forget(name)
        self.failed[name] = reason
        return Trouble(number, reason[:1000])

    def fail_log(self, name: str, reason: str) -> Trouble | None:
        number = self._numbers.get(name)
        return None if number is None else self.fail(number, reason)

    def _forget(self, name: str) -> None:
        if (number := self._numbers.pop(name, None)) is not None:
            del self._names[number]


def wanted(target: str, guid: str, name: str, addresses: Iterable[str]) -> bool:
    """Whether a node is the one to mirror. `target` is its guid, its name or an address."""
    if target in (guid, name, *addresses):
        return True
    return ":" in target and (address := _address(target)) is not None and address in map(_address, addresses)


def _address(text: str) -> str | None:
    """The normal form of an address; None: it is not the address of another process."""
    try:
        return address_of(text)
    except ServersError:
        return None
