"""A mirror in the place of its node: hands out of the channels of its copies, and gives back what became of them.

A driver over the copies. It is told when by `turns`.
"""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from busway.broker.progress import Entry, States, rebuild
from busway.cluster.copies import FOLDER, Copy
from busway.cluster.copying import Copying
from busway.cluster.mirror_words import Back, Word
from busway.cluster.noting import split

if TYPE_CHECKING:
    from busway.broker.hub import Hub

log = logging.getLogger("busway.cluster")

_MARK: Final = ".stood-in"
"""A file beside the copies of a node: what happened to its channels here is not given back yet."""


class Heir:
    """What one broker does for nodes that are gone."""

    def __init__(self, hub: "Hub", copying: Copying | None, send: Callable[[int, Word], None]) -> None:
        self._hub = hub
        self._copying = copying
        self._send = send
        self._before: dict[str, dict[str, States]] = {}
        """What the channels were when it began: by node and stream."""

    def ready(self, guid: str) -> bool:
        """Whether all that the channels of that node did is known here."""
        return any(copy.fresh for copy in self._copies(guid))

    @property
    def guids(self) -> set[str]:
        return set() if self._copying is None else {guid for guid, _ in self._copying.copies}

    def begin(self, guid: str) -> None:
        """Hand out for that node."""
        before = self._before[guid] = {}
        self._mark(guid, yes=True)
        for copy in self._copies(guid):
            if copy.fresh:
                copy.journal.look(partial(self._adopt, guid, copy, before))

    def _adopt(self, guid: str, copy: Copy, before: dict[str, States], entries: list[Entry]) -> None:
        if self._before.get(guid) is before:  # it is still so
            before[copy.name] = rebuild(entries)
            self._hub.delivering.standing.adopt(guid, copy, copy.journal, rebuild(entries))

    def end(self, guid: str) -> None:
        """Hand out for that node no longer. Who hands out meanwhile isn't known, so nothing here is for sure."""
        self._hub.delivering.standing.release(guid)
        self.spoil(guid)

    def spoil(self, guid: str) -> None:
        """What is here may be old: it is not handed out of before its node has told everything anew."""
        for copy in self._copies(guid):
            copy.fresh = False

    def give_back(self, guid: str, conn: int, then: Callable[[], None]) -> None:
        """The node is here again: it hears what became of its channels, before anything else."""
        self._hub.delivering.standing.release(guid)
        before = self._before.pop(guid, {})
        left = self._copies(guid) if self._marked(guid) else []
        if not left:
            then()
            return

        def shown(copy: Copy, entries: list[Entry]) -> None:
            left.remove(copy)
            self._tell(conn, copy, before.get(copy.name), entries, last=not left)
            if not left:
                then()

        for copy in list(left):
            copy.journal.look(partial(shown, copy))

    def given(self, guid: str) -> None:
        """It has noted that."""
        self._mark(guid, yes=False)

    def _tell(self, conn: int, copy: Copy, before: States | None, entries: list[Entry], *, last: bool) -> None:
        after = rebuild(entries)
        copy.channels = set(after)
        made = tuple(name for name in after if before is not None and name not in before)
        gone = tuple(name for name in before or () if name not in after)
        parts = list(split(entries))
        for at, part in enumerate(parts):
            end = at == len(parts) - 1
            self._send(conn, Back(copy.name, part, made, gone, more=not end, last=last and end))

    # Inside.

    def _copies(self, guid: str) -> list[Copy]:
        return [] if self._copying is None else self._copying.of(guid)

    def _file(self, guid: str) -> Path | None:
        return None if self._hub.folder is None else self._hub.folder / FOLDER / guid / _MARK

    def _marked(self, guid: str) -> bool:
        file = self._file(guid)
        return file is not None and file.exists()

    def _mark(self, guid: str, *, yes: bool) -> None:
        if (file := self._file(guid)) is None:
            return
        try:
            if yes:
                file.touch()
            else:
                file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s can't be written: %s; a node may hand out again what was done here", file, error.strerror)
