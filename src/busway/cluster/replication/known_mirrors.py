"""The mirrors that a node had, stored in the file `mirrors.json` of its data folder.

After a restart the primary driver waits for their records, and promotion asks them whether one was promoted.
"""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from busway.broker.storage.data_folder import replace, sealed, unsealed

log = logging.getLogger("busway.cluster")

FILE: Final = "mirrors.json"


class _Known(msgspec.Struct):
    """The content of the file."""

    mirrors: list[str]
    """Mirrors that this node waits for when it starts."""
    heirs: list[str] = []
    """Nodes that may have been promoted in place of this one while it was down."""


class KnownMirrors:
    """The guids of mirrors. Without a folder they are lost when the broker ends."""

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

    def add(self, guid: str) -> None:
        """Add a mirror."""
        self._write(mirrors=_with(self._known.mirrors, guid))

    def keep(self, guids: Iterable[str]) -> None:
        """Wait for these mirrors only at the next start."""
        self._write(mirrors=list(guids))

    def add_heir(self, guid: str) -> bool:
        """Add a node that may be promoted in place of this one. Returns whether it is new."""
        new = guid not in self._known.heirs
        self._write(heirs=_with(self._known.heirs, guid))
        return new

    def drop(self, guid: str) -> None:
        """Remove a mirror for good."""
        self._write(
            mirrors=[mirror for mirror in self._known.mirrors if mirror != guid],
            heirs=[mirror for mirror in self._known.heirs if mirror != guid],
        )

    def _write(self, **changes: list[str]) -> None:
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
