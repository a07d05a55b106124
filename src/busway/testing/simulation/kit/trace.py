"""What happened, as one hash: two runs with the same hash were the same run. On demand the lines themselves are kept."""

from collections.abc import Callable
from hashlib import blake2b


class Trace:
    """Is told every event with its time."""

    def __init__(self, time: Callable[[], float], *, lines: bool = False) -> None:
        self._time = time
        self._hash = blake2b(digest_size=16)
        self.lines: list[str] | None = [] if lines else None
        self.events = 0
        self.folder = b"/no folder"
        """The name of a folder on the real disk, which is another one each time and tells nothing."""

    def add(self, what: str, data: bytes = b"") -> None:
        """Something has happened."""
        self.events += 1
        self._hash.update(f"{self._time():.9f} {what} {len(data)}\n".encode().replace(self.folder, b""))
        self._hash.update(data.replace(self.folder, b""))
        if self.lines is not None:
            self.lines.append(f"{self._time():12.6f}  {what}{f' ({len(data)} bytes)' if data else ''}")

    def hash(self) -> str:
        return self._hash.hexdigest()
