"""How far a replay has come: a small file, so that one that was killed goes on from there."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from busway.settings import draw_secret

_VERSION: Final = 2


class ProgressError(ValueError):
    """A file that says how far a replay has come can't be used; the reason says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a replay is of, and how much of it is stored for sure."""

    name: str
    to: str
    total: int
    """Messages that it has in all."""
    ends: Mapping[str, int]
    """The last offset of each stream, by `broker/stream`, when it began: what came later is no part of it."""
    places: Mapping[str, int] = field(default_factory=dict)
    """Where each stream of the bus ended when this was written: what the replay has stored behind that is found there."""
    done: int = 0
    key: tuple[int, str, str, int] | None = None
    """The last message that is stored for sure: microseconds, broker, stream, offset. All before it are, too."""
    secret: str = field(default_factory=lambda: draw_secret().hex(), repr=False)
    """That of the publisher's session, in hexadecimal digits: the same for all runs that have this file."""

    @property
    def finished(self) -> bool:
        return self.done >= self.total

    @classmethod
    def read(cls, file: Path, name: str, to: str) -> Self | None:
        """That of this replay; None if it has not begun. Raises ProgressError."""
        try:
            given: dict[str, Any] = json.loads(file.read_text())
            version = given.pop("version")
            given["key"] = None if given["key"] is None else tuple(given["key"])
            found = cls(**given)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ProgressError(
                f"{file} does not say how far a replay has come ({error}). Remove it: what the replay {name!r} has stored is then "
                "looked for in all streams"
            ) from error
        if version != _VERSION:
            raise ProgressError(f"{file} was written by another version of busway: use that, or another name")
        if (found.name, found.to) != (name, to):
            raise ProgressError(
                f"{file} is of the replay {found.name!r} to {found.to!r}, not of {name!r} to {to!r}: give another name, or the same topics"
            )
        return found

    def write(self, file: Path) -> None:
        """In one step, so that the file is always whole."""
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = file.with_name(f".{file.name}.{os.getpid()}")
        new.unlink(missing_ok=True)
        with open(new, "w", opener=lambda path, flags: os.open(path, flags | os.O_EXCL, 0o600)) as out:
            json.dump({"version": _VERSION, **asdict(self)}, out)
            out.flush()
            os.fsync(out.fileno())
        new.replace(file)
