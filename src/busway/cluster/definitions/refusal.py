"""Stands in for streams that a node should have and can't make: what is published to their topics is refused, with the reason.

A driver. Without it such messages would go to the stream `default`, where nobody looks for them. The engine is lent a front of which nothing is
ever stored; streams that are there come first, so their topics stay theirs.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from busway._core import Log
from busway.common import environment
from busway.errors import BusError

if TYPE_CHECKING:
    from busway.broker.hub import Hub


class _Front(NamedTuple):
    """What the engine has instead of a stream."""

    number: int
    log: Log
    topics: Sequence[str]


class Refusals:
    """All of one hub."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self._fronts: dict[str, _Front] = {}
        self._reasons: dict[str, str] = {}

    def refuse(self, wanted: Mapping[str, tuple[Sequence[str], str]], *, anew: bool = False) -> None:
        """These and no others: the topics of each stream, and why it is not there. `anew`: other streams have come, and go first."""
        for name, front in list(self._fronts.items()):
            if anew or name not in wanted or wanted[name][0] != front.topics:
                self._end(name)
        for name, (topics, reason) in wanted.items():
            self._reasons[name] = (
                f"the stream {name!r} is to be at this node as at the others, and can't be made: {reason}"
            )
            if name not in self._fronts:
                self._begin(name, topics)

    def end(self, name: str) -> None:
        """That stream is there now."""
        if name in self._fronts:
            self._end(name)

    def stop(self) -> None:
        for name in list(self._fronts):
            self._end(name)

    def _begin(self, name: str, topics: Sequence[str]) -> None:
        number = self._hub.streams.number()
        log = environment.open_front(name=name, next=0, stored=0, sequences={}, sent=[], waiting=[])
        self._fronts[name] = _Front(number, log, topics)
        if (handle := log.fileno()) is not None:
            self._hub.loop.add_reader(handle, partial(self._rung, name))
        self._hub.engine.add_stream(number, name, bytes.fromhex(self._hub.guid), log, list(topics))

    def _rung(self, name: str) -> None:
        """Something waits to be stored."""
        front = self._fronts[name]
        front.log.hear()
        front.log.fail(self._reasons[name])
        self._hub.handle(self._hub.engine.commit(front.number))

    def _end(self, name: str) -> None:
        self._rung(name)
        front = self._fronts.pop(name)
        del self._reasons[name]
        if (handle := front.log.fileno()) is not None:
            self._hub.loop.remove_reader(handle)
        self._hub.engine.remove_stream(front.number)
        with suppress(BusError):  # nothing of it is kept anyway
            front.log.close()
