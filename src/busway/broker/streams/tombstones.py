"""Where removed streams ended: one that is made again under its name goes on from there.

So a place in a stream never means another message later, and whoever kept one misses nothing of the new stream.
"""

import logging
from pathlib import Path
from typing import Final

import msgspec

from busway.broker.storage.data_folder import replace, sealed, unsealed
from busway.broker.storage.permissions import make_folder
from busway.common import environment
from busway.errors import DataFailed
from busway.streams import StreamConfig

log = logging.getLogger("busway.broker")

FILE: Final = "ends.json"
_MICROSECOND: Final = 1000
_RESERVED: Final = 1 << 40
"""Offsets that a stream in memory may give."""


class _Ends(msgspec.Struct):
    ends: dict[str, int] = {}


class Tombstones:
    """By the name of a stream, the offset behind its last message. `folder` is that of the streams, if there is one."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._ends: dict[str, int] = {}
        self._lost = False
        """What was remembered can't be read."""

    def open(self) -> None:
        """Read what is remembered."""
        if self._folder is None:
            return
        try:
            self._ends = unsealed((self._folder / FILE).read_bytes(), _Ends).ends
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as error:
            # Better large offsets than some that were given before.
            log.warning(
                "%s can't be read: %s; streams that are made begin with large offsets", self._folder / FILE, error
            )
            self._lost = True

    def begin(self, config: StreamConfig) -> int:
        """The first offset of a stream that is made now."""
        if self._lost:
            return environment.time_ns() // _MICROSECOND
        begin = self._ends.get(config.name, 0)
        if config.store == "memory":
            # It ends with the broker, maybe at once: what it may give until then is never given again.
            self.ended(config.name, begin + _RESERVED)
        return begin

    def __contains__(self, name: str) -> bool:
        return name in self._ends

    def ended(self, name: str, end: int) -> None:
        """Remember where a stream ended that is removed, or that ends with the broker."""
        self._ends[name] = end
        if self._folder is not None:
            try:
                make_folder(self._folder)
                replace(self._folder / FILE, sealed(_Ends(self._ends)))
            except OSError as error:
                reason = f"{self._folder / FILE} can't be written, which has to tell where stream {name!r} ends"
                raise DataFailed(f"{reason}: {error.strerror}") from error
