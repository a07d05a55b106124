"""Refuses publishes to streams that this node should have and can't create, with the reason.

Otherwise such messages would be stored in the stream `default`, where no consumer expects them. The engine gets a
placeholder stream that stores nothing. Existing streams take precedence for their topics. `agreement` calls it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from busway._core import Log
from busway.common import environment
from busway.errors import BusError

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime
    from busway.broker.streams.table import StreamTable


class _Placeholder(NamedTuple):
    """The engine's placeholder for a missing stream."""

    number: int
    log: Log
    topics: Sequence[str]


class Refusals:
    """The placeholders of one broker."""

    def __init__(self, runtime: "Runtime", table: "StreamTable") -> None:
        self._runtime = runtime
        self._table = table
        self._placeholders: dict[str, _Placeholder] = {}
        self._reasons: dict[str, str] = {}

    def refuse(self, wanted: Mapping[str, tuple[Sequence[str], str]], *, anew: bool = False) -> None:
        """Refuse publishes to exactly these streams, given by name with topics and reason.

        `anew`: streams were created and take precedence, so register all placeholders again.
        """
        for name, placeholder in list(self._placeholders.items()):
            if anew or name not in wanted or wanted[name][0] != placeholder.topics:
                self._end(name)
        for name, (topics, reason) in wanted.items():
            self._reasons[name] = f"this node can't create the stream {name!r} of the cluster: {reason}"
            if name not in self._placeholders:
                self._begin(name, topics)

    def end(self, name: str) -> None:
        """The stream exists now."""
        if name in self._placeholders:
            self._end(name)

    def stop(self) -> None:
        for name in list(self._placeholders):
            self._end(name)

    def _begin(self, name: str, topics: Sequence[str]) -> None:
        number = self._table.number()
        log = environment.open_front(name=name, next=0, stored=0, sequences={}, sent=[], waiting=[])
        self._placeholders[name] = _Placeholder(number, log, topics)
        if (handle := log.fileno()) is not None:
            self._runtime.loop.add_reader(handle, partial(self._refuse_waiting, name))
        self._runtime.engine.add_stream(number, name, bytes.fromhex(self._runtime.guid), log, list(topics))

    def _refuse_waiting(self, name: str) -> None:
        """Refuse the publishes that wait."""
        placeholder = self._placeholders[name]
        placeholder.log.clear_signal()
        placeholder.log.fail(self._reasons[name])
        self._runtime.handle(self._runtime.engine.commit(placeholder.number))

    def _end(self, name: str) -> None:
        self._refuse_waiting(name)
        placeholder = self._placeholders.pop(name)
        del self._reasons[name]
        if (handle := placeholder.log.fileno()) is not None:
            self._runtime.loop.remove_reader(handle)
        self._runtime.engine.remove_stream(placeholder.number)
        with suppress(BusError):  # the log is empty
            placeholder.log.close()
