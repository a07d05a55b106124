"""The trace of a simulation as a hash, and on request as lines. Runs with the same hash are identical."""

from collections.abc import Callable
from hashlib import blake2b


class Trace:
    """Records every event with its time."""

    def __init__(self, time: Callable[[], float], *, lines: bool = False) -> None:
        self._time = time
        self._hash = blake2b(digest_size=16)
        self.lines: list[str] | None = [] if lines else None
        self.events = 0
        self.folder = b"/no folder"
        """A folder on the real disk. Its name differs in each run, so the hash excludes it."""

    def add(self, what: str, data: bytes = b"") -> None:
        """Record an event."""
        self.events += 1
        self._hash.update(f"{self._time():.9f} {what} {len(data)}\n".encode().replace(self.folder, b""))
        self._hash.update(data.replace(self.folder, b""))
        if self.lines is not None:
            self.lines.append(f"{self._time():12.6f}  {what}{f' ({len(data)} bytes)' if data else ''}")

    def hash(self) -> str:
        return self._hash.hexdigest()
