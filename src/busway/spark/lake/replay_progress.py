"""Progress file of a replay, from which the next run continues after a kill. Called by busway.spark.lake.replay."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from busway.settings import draw_secret

_VERSION: Final = 2


class ProgressError(ValueError):
    """The progress file of a replay can't be used. The text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The identity of a replay, and the messages that are certainly stored."""

    name: str
    to: str
    total: int
    """Number of messages of the replay."""
    ends: Mapping[str, int]
    """The last offset of each stream at the begin, by `broker/stream`. Later messages are not replayed."""
    places: Mapping[str, int] = field(default_factory=dict)
    """The end of each stream of the target bus when the file was written. The read-back begins there."""
    done: int = 0
    key: tuple[int, str, str, int] | None = None
    """The last message that is certainly stored: microseconds, broker, stream, offset. So are all before it."""
    secret: str = field(default_factory=lambda: draw_secret().hex(), repr=False)
    """The secret of the publisher's session in hexadecimal digits. All runs with this file use it."""

    @property
    def finished(self) -> bool:
        return self.done >= self.total

    @classmethod
    def read(cls, file: Path, name: str, to: str) -> Self | None:
        """Read the progress of a replay. Returns None if it has not begun. Raises ProgressError."""
        try:
            given: dict[str, Any] = json.loads(file.read_text())
            version = given.pop("version")
            given["key"] = None if given["key"] is None else tuple(given["key"])
            found = cls(**given)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ProgressError(
                f"{file} is not the progress of a replay ({error}): remove it; the replay {name!r} then finds its stored messages "
                "in the streams"
            ) from error
        if version != _VERSION:
            raise ProgressError(f"{file} was written by another version of busway: use that version, or another name")
        if (found.name, found.to) != (name, to):
            raise ProgressError(
                f"{file} belongs to the replay {found.name!r} to {found.to!r}, not of {name!r} to {to!r}: give another name, or the same topics"
            )
        return found

    def write(self, file: Path) -> None:
        """Write the file atomically, readable only by its owner."""
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = file.with_name(f".{file.name}.{os.getpid()}")
        new.unlink(missing_ok=True)
        with open(new, "w", opener=lambda path, flags: os.open(path, flags | os.O_EXCL, 0o600)) as out:
            json.dump({"version": _VERSION, **asdict(self)}, out)
            out.flush()
            os.fsync(out.fileno())
        new.replace(file)
