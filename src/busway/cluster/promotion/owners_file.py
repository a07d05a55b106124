"""The file `owners.json` in the data folder: the promotions that a node knows, and the streams that it owns by one."""

import logging
from pathlib import Path
from typing import Final

import msgspec

from busway.broker.storage.data_folder import replace, sealed, unsealed
from busway.cluster.promotion.owners import Owner
from busway.errors import DataFailed

log = logging.getLogger("busway.cluster")

FILE: Final = "owners.json"


class Content(msgspec.Struct, forbid_unknown_fields=True):
    """The content of the file."""

    owners: list[Owner] = []
    held: list[str] = []
    """The nodes whose streams this one served when the file was written, besides its own."""


class OwnersFile:
    """The file in one data folder. Without a folder nothing is stored."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / FILE

    def load(self) -> Content:
        """Raises DataFailed if the file is damaged: the node must not forget that it was replaced."""
        if self._file is None:
            return Content()
        try:
            return unsealed(self._file.read_bytes(), Content)
        except FileNotFoundError:
            return Content()
        except (OSError, msgspec.MsgspecError) as error:
            text = "restore the file from a backup; without it this node may deliver what another one owns"
            raise DataFailed(f"can't read {self._file}: {error}; {text}") from error

    def save(self, content: Content) -> None:
        """Raises DataFailed."""
        if self._file is not None:
            try:
                replace(self._file, sealed(content))
            except OSError as error:
                raise DataFailed(f"can't write {self._file}: {error.strerror}") from error
