"""The machines of a stream and its mirror, joined in memory."""

from itertools import count

from busway._core import Log, SimulatedFiles
from busway.cluster.replication.compare import mark
from busway.cluster.replication.messages import Offer, Part, Want
from busway.cluster.replication.primary import Primary
from busway.cluster.replication.replica import Replica
from busway.errors import DataFailed
from busway.streams import StreamConfig
from tests.support.stored import row

CONFIG = StreamConfig(name="s", topics=("t",), max_age=None)


LIMITS = {"bucket_bytes": 2000, "max_age": 0}


class Shelf:
    """Copies on files in memory; what was put aside is kept for the test."""

    def __init__(self):
        self.files, self.logs, self.aside = {}, {}, []
        self.room = True

    def names(self):
        return list(self.logs)

    def find(self, name):
        return self.logs.get(name)

    def make(self, name, config, begin):
        if (old := self.logs.pop(name, None)) is not None:
            self.aside.append(old)
        files = self.files[name] = SimulatedFiles()
        log = self.logs[name] = Log.open(files, begin=begin, **LIMITS)
        return log

    def configure(self, config):
        pass

    def remove(self, name, *, keep):
        if (old := self.logs.pop(name, None)) is not None and keep:
            self.aside.append(old)

    def check_room(self, size):
        if not self.room:
            raise DataFailed("the disk is full")

    def crash(self, power=None):
        self.files = {name: files.survivor() for name, files in self.files.items()}
        for files in self.files.values() if power is not None else ():
            files.power_cut(power)
        self.logs = {name: Log.open(files, **LIMITS) for name, files in self.files.items()}


def filled(number, begin=0, **settings):
    log = Log.open(SimulatedFiles(), begin=begin, **{**LIMITS, **settings})
    add(log, number)
    return log


def add(log, number):
    first = log.next
    log.append(
        [row("t", f"payload {first + n}".encode(), session=5, number=first + n + 1) for n in range(number)], 1000
    )
    log.flush()


def content(log, begin=None):
    """All records, with the flag left out that is set while they are written."""
    found, at = [], log.first if begin is None else begin
    while at < log.written:
        first, at, block = log.read_written(at, 1)
        if block:
            found.append((first, mark(block)))
    return found


def copy_some(log, other, begin, end):
    while begin < end:
        _, begin, block = log.read_written(begin, 1)
        assert other.copy(block)


class Pair:
    """A node with one stream, and its mirror."""

    def __init__(self, log, shelf=None):
        self.log, self.shelf = log, shelf or Shelf()
        self.origin, self.mirror = Primary(count(1)), Replica(self.shelf)

    def ask(self):
        return self.answer(self.mirror.ask())

    def answer(self, ask):
        """The offer, and what comes of it at once."""
        offer = self.origin.offer("s", CONFIG, self.log, ask.have.get("s"))
        said = [offer]
        self.tell(offer)
        return said[0]

    def tell(self, word):
        while word is not None:
            word = self.mirror.heard(word) if isinstance(word, Offer | Part | Want) else self.origin.heard(word)

    def run(self):
        while (part := self.origin.part()) is not None:
            self.tell(part)
            if (got := self.mirror.written("s")) is not None:
                self.tell(got)

    @property
    def copy(self):
        return self.shelf.logs["s"]


class Again(Pair):
    """As a driver does it: what is wanted at once goes behind the offer."""

    def answer(self, ask):
        offer = super().answer(ask)
        while (want := self.origin.want("s")) is not None:
            self.tell(want)
        return offer
