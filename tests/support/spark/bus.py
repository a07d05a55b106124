"""A bus in this process with a data folder, whose streams have small buckets, so that they can be made to lose their beginning."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from busway import sync


@dataclass
class Served:
    server: sync.Server
    bus: sync.Bus
    folder: Path

    @property
    def url(self) -> str:
        return str(self.server.addresses[0])

    @property
    def guid(self) -> str:
        return self.bus.streams()[0].broker

    def stream(self, name: str, *topics: str, bucket: int = 4096, **settings: Any) -> sync.Stream:
        """A stream with buckets of so many bytes."""
        made = self.bus.create_stream(name, topics or [f"{name}/**"], **{"max_age": None, **settings})
        self.server._inner._hub.streams.get(name).log.set(bucket_bytes=bucket)
        return made

    def forget(self, name: str, count: int) -> int:
        """Keep about so many messages; the first offset that is left."""
        self.bus.update_stream(name, max_count=count)
        return self.bus.stream(name).info().first

    def options(self, kind: str) -> dict[str, str]:
        return {"url": self.url} if kind == "url" else {"path": str(self.folder)}


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    with sync.serve("tcp://127.0.0.1:0", data=folder) as server, sync.connect(str(server.addresses[0])) as bus:
        yield Served(server, bus, folder)
