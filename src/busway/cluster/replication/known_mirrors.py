"""The mirrors and nodes that a node knew, stored in the file `mirrors.json` of its data folder.

The primary driver reads them after a restart to wait for its mirrors; failover reads them to compute the quorum.
"""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from busway.broker.storage.data_folder import replace, sealed, unsealed

log = logging.getLogger("busway.cluster")

FILE: Final = "mirrors.json"


class _Known(msgspec.Struct, forbid_unknown_fields=True):
    """The content of the file."""

    mirrors: list[str]
    """Mirrors that this node waits for when it starts."""
    heirs: list[str] = []
    """Mirrors that may deliver from this node's channels while it is down."""
    nodes: list[str] = []
    """All nodes of the cluster."""
    left: bool = False
    """This node has announced that it stops, so the others do not count it."""
    taken: dict[str, int] = {}
    """By mirror: its last take-over whose progress this node has recorded."""


class KnownMirrors:
    """The guids of mirrors and nodes. Without a folder they are lost when the broker ends."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / FILE
        self._known = _Known([])
        if self._file is not None:
            try:
                self._known = unsealed(self._file.read_bytes(), _Known)
            except FileNotFoundError:
                pass
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("can't read %s: %s; this node starts without waiting for a mirror", self._file, error)

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
        """The last take-over by this mirror whose progress is completely recorded here; 0: none."""
        return self._known.taken.get(guid, 0)

    def take(self, guid: str, turn: int) -> None:
        """Record that the progress of this take-over is completely written."""
        if turn:
            self._write(taken=self._known.taken | {guid: turn})

    def leave(self, *, yes: bool) -> None:
        """Record that this node stops, or that it is back."""
        self._write(left=yes)

    def add(self, guid: str) -> None:
        """Add a mirror."""
        mirrors, heirs = self._known.mirrors, self._known.heirs
        self._write(mirrors=_with(mirrors, guid), heirs=_with(heirs, guid))

    def keep(self, guids: Iterable[str]) -> None:
        """Wait for these mirrors only at the next start."""
        self._write(mirrors=list(guids))

    def knows(self, nodes: Iterable[str]) -> None:
        """Record the nodes of the cluster. A node without mirrors does not need them."""
        if self._known.heirs:
            self._write(nodes=sorted(nodes))

    def drop(self, guid: str) -> None:
        """Remove a mirror for good."""
        self._write(
            mirrors=[mirror for mirror in self._known.mirrors if mirror != guid],
            heirs=[mirror for mirror in self._known.heirs if mirror != guid],
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
                text = "can't write %s: %s; after a restart this node will not wait for its mirror"
                log.warning(text, self._file, error.strerror)


def _with(guids: list[str], guid: str) -> list[str]:
    return guids if guid in guids else [*guids, guid]
