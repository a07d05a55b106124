"""The mirrors that a node had, and the nodes that it knew: noted in its data folder, so that it waits for them when it starts again."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from busway.broker.storage.data_folder import replace, sealed, unsealed

log = logging.getLogger("busway.cluster")

FILE: Final = "mirrors.json"


class _Known(msgspec.Struct, forbid_unknown_fields=True):
    mirrors: list[str]
    """Those that a start waits for."""
    heirs: list[str] = []
    """Those that may hand out of this node's channels while it is gone."""
    nodes: list[str] = []
    """All of the cluster."""
    left: bool = False
    """This one has told the others that it stops: they do not count it."""
    taken: dict[str, int] = {}
    """The last turn of each mirror of which this one has noted what it did."""


class KnownMirrors:
    """Guids. Without a folder nothing outlives the broker."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / FILE
        self._known = _Known([])
        if self._file is not None:
            try:
                self._known = unsealed(self._file.read_bytes(), _Known)
            except FileNotFoundError:
                pass
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("%s can't be read: %s; no mirror is waited for", self._file, error)

    @property
    def guids(self) -> list[str]:
        return self._known.mirrors

    @property
    def heirs(self) -> list[str]:
        return self._known.heirs

    @property
    def nodes(self) -> list[str]:
        return self._known.nodes

    @property
    def left(self) -> bool:
        return self._known.left

    def taken(self, guid: str) -> int:
        """The last turn of a mirror of which all is noted here; 0: none."""
        return self._known.taken.get(guid, 0)

    def take(self, guid: str, turn: int) -> None:
        """All that this mirror did in its turn is noted here."""
        if turn:
            self._write(taken=self._known.taken | {guid: turn})

    def leave(self, *, yes: bool) -> None:
        """This node stops, or is there again."""
        self._write(left=yes)

    def add(self, guid: str) -> None:
        """One more mirror."""
        mirrors, heirs = self._known.mirrors, self._known.heirs
        self._write(mirrors=_with(mirrors, guid), heirs=_with(heirs, guid))

    def keep(self, guids: Iterable[str]) -> None:
        """These mirrors are waited for, and no others."""
        self._write(mirrors=list(guids))

    def knows(self, nodes: Iterable[str]) -> None:
        """These are the nodes of the cluster. Noted only by one that has mirrors: nobody else asks."""
        if self._known.heirs:
            self._write(nodes=sorted(nodes))

    def drop(self, guid: str) -> None:
        """That one never comes again."""
        self._write(
            mirrors=[one for one in self._known.mirrors if one != guid],
            heirs=[one for one in self._known.heirs if one != guid],
        )

    def _write(self, **changes: list[str] | dict[str, int] | bool) -> None:
        known = msgspec.structs.replace(self._known, **changes)
        if known == self._known:
            return
        self._known = known
        if self._file is not None:
            try:
                replace(self._file, sealed(known))
            except OSError as error:
                log.warning("%s can't be written: %s; no mirror is waited for later", self._file, error.strerror)


def _with(guids: list[str], guid: str) -> list[str]:
    return guids if guid in guids else [*guids, guid]
