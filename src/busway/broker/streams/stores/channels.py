"""The channel journal of a stream in a database: the interface of `broker.channels.progress_log.ProgressLog` over a `Store`.

The state of each channel is stored as entries under the keys 0, 1, …; only changed ones are saved. Entries that are
written while one transaction runs are saved by the next one.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from busway.broker.channels.state.progress import ChannelState, Entry, States, apply
from busway.broker.streams.stores import ChannelEntry, Store
from busway.errors import BusError, Closed, DataFailed, StoreFailed

log = logging.getLogger("busway.broker")

_ENDING: Final = 5.0
"""Seconds that stop() waits for the last entries."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)


class DatabaseJournal:
    """The channel journal of one stream. The store is opened before it and closed after it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._states: States = {}
        self._saved: dict[str, list[bytes]] = {}
        """The entries in the database, by channel."""
        self._changed: dict[str, None] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._writing: asyncio.Task[None] | None = None
        self._failing = False
        self.failed = 0
        self.batches = 0

    async def start(self) -> States:
        """Read the entries. Returns the state of each channel."""
        for channel, key, value in sorted(
            await self._store.load_channels(), key=lambda entry: (entry[0], int(entry[1]))
        ):
            if value is None:
                continue
            try:
                apply(self._states, _decoder.decode(value))
            except msgspec.MsgspecError as error:
                name = self._store.name
                raise DataFailed(f"channel {channel!r} of stream {name!r} is damaged at {key}: {error}") from error
            self._saved.setdefault(channel, []).append(value)
        return {name: state.copy() for name, state in self._states.items()}

    def write(self, entries: Iterable[Entry]) -> "asyncio.Future[None]":
        """Save entries. The future is done when these and all earlier ones are as safe as promised; else StoreFailed.

        Without entries it reports the same of the earlier ones. Entries that could not be saved are saved with later
        ones.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for entry in entries:
            apply(self._states, entry)
            self._changed[entry.channel] = None
        self._waiting.append(written)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name=f"busway channels of {self._store.name}")
        return written

    async def stop(self) -> None:
        """Wait until all entries are saved or have failed, but not for a database that does not answer."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=_ENDING)

    def figures(self) -> dict[str, Any]:
        return {"channels": len(self._states), "failed": self.failed, "batches": self.batches}

    async def _write(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                error = await self._save()
                for written in waiting:
                    if written.done():
                        continue  # it was cancelled
                    if error is None:
                        written.set_result(None)
                    else:
                        written.set_exception(StoreFailed(error))
        finally:
            self._writing = None

    async def _save(self) -> str | None:
        """Save the changed channels. Returns the reason if that failed."""
        changed, self._changed = self._changed, {}
        new = {channel: _encoded(self._states.get(channel)) for channel in changed}
        entries = [entry for channel, values in new.items() for entry in self._difference(channel, values)]
        try:
            if entries:
                await self._store.save_channels(entries)
        except Exception as error:
            self.failed += 1
            self._changed = {**changed, **self._changed}
            if isinstance(error, Closed):  # the stream was removed, and its channels with it
                return error.reason
            if isinstance(error, BusError):
                if not self._failing:  # logged once: all writes fail until the database is back
                    self._failing = True
                    log.warning(
                        "the channels of stream %r can't be saved, and each later write retries it: %s",
                        *(self._store.name, error.reason),
                    )
                return f"the channels of stream {self._store.name!r} can't be saved: {error.reason}"
            log.exception("unexpected error while the channels of stream %r were saved", self._store.name)
            return "an unexpected error, which the broker has logged"
        self.batches += 1
        if self._failing:
            self._failing = False
            log.warning("the channels of stream %r are saved again", self._store.name)
        for channel, values in new.items():
            if values:
                self._saved[channel] = values
            else:
                self._saved.pop(channel, None)
        return None

    def _difference(self, channel: str, values: list[bytes]) -> list[ChannelEntry]:
        old = self._saved.get(channel, [])
        put = [
            ChannelEntry(channel, str(key), value)
            for key, value in enumerate(values)
            if key >= len(old) or old[key] != value
        ]
        return put + [ChannelEntry(channel, str(key), None) for key in range(len(values), len(old))]


def _encoded(state: ChannelState | None) -> list[bytes]:
    return [] if state is None else [_encoder.encode(entry) for entry in state.entries()]
