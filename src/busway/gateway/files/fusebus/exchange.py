"""Exchange of `fusebus`: the clients, their subscriptions and their positions in the message buffer. A machine.

`bus_file.py` and `bridge.py` call it. A read returns the first messages that the client has not received and that one
of its subscriptions matches, also older ones if the client subscribes to their channel later. Each client has a
cursor. A message before the cursor was received, matched no subscription, or is in the backlog of the client.
"""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from errno import EINVAL, EMSGSIZE, ENFILE, ENOENT, ENOSPC, ENXIO
from heapq import heappop, heappush, merge
from typing import Final

from busway._core import Selection
from busway.errors import BusError
from busway.fuse.format import HEAD, MESSAGE, META, SUBSCRIBE, TWO, UNSUBSCRIBE, WORD
from busway.gateway.files.config import Mount
from busway.gateway.files.fusebus.message_buffer import MessageBuffer, data_end, serno_of
from busway.gateway.files.fusebus.registry import Registry

NATIVE: Final = 1 << 63
"""Smallest client number of a native publisher."""


@dataclass(slots=True)
class Subscription:
    """A regular expression or the name of a channel, with the numbers of the matching channels."""

    text: str
    selection: Selection | None
    channels: set[int] = field(default_factory=set)

    def takes(self, name: str) -> bool:
        """Whether the subscription matches a channel."""
        return name == self.text or (self.selection is not None and self.selection.covers(name))


@dataclass(slots=True, eq=False)
class Client:
    """One open file `fusebus`."""

    number: int
    cursor: int
    """Serial number of the next message to examine."""
    channels: set[int] = field(default_factory=set)
    """Channels that its subscriptions match."""
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    backlog: deque[int] = field(default_factory=deque)
    """Serial numbers before the cursor of unreceived messages that its subscriptions match."""
    floors: dict[int, int] = field(default_factory=dict)
    """For each unsubscribed channel the serial number below which the client has received its messages."""
    lost: int = 0
    """Messages that were dropped from the buffer before the client received them."""
    skipped: int = 0
    """Messages that were skipped because two reads had no room for them."""
    refused: tuple[int, int] | None = None
    """Serial number of the message that the last read had no room for, and the size of that read."""
    rest: bytes = b""
    """Unread rest of a message that is longer than the longest read."""


class Exchange:
    """The state of the files `fusebus` and `channels`."""

    def __init__(self, settings: Mount) -> None:
        self._settings = settings
        self.registry = Registry(settings.channels)
        self.store = MessageBuffer(settings.messages, settings.bytes)
        self._subscribers: list[set[Client]] = []
        """For each channel the clients with a matching subscription."""
        self.clients: dict[int, Client] = {}
        self._free: list[int] = []
        self.waiting: set[Client] = set()
        """Clients with a waiting read or poll."""
        self.published = 0
        self.received = 0
        self.lost = 0
        self.skipped = 0

    # Channels.

    def register(self, names: Iterable[str]) -> None:
        """Register checked names, and add them to the existing subscriptions that match."""
        for name in names:
            number = self.registry.add(name)
            if number < len(self._subscribers):
                continue
            self._subscribers.append(set())
            for client in self.clients.values():
                for subscription in client.subscriptions.values():
                    if subscription.takes(name):
                        subscription.channels.add(number)
                        self._subscribers[number].add(client)
                        client.channels.add(number)

    # Clients.

    def open(self) -> Client:
        """Add a client with the lowest free number; it begins with the oldest message. Raises OSError at the limit."""
        if len(self.clients) >= self._settings.clients:
            raise OSError(ENFILE, f"too many clients: the limit is {self._settings.clients}")
        number = heappop(self._free) if self._free else len(self.clients)
        client = self.clients[number] = Client(number, self.store.oldest)
        return client

    def close(self, client: Client) -> None:
        """Remove a client with its subscriptions."""
        if self.clients.pop(client.number, None) is not None:
            heappush(self._free, client.number)
            self.waiting.discard(client)
            for channel in client.channels:
                self._subscribers[channel].discard(client)

    def subscribe(self, client: Client, pattern: bytes, room: int) -> int:
        """Subscribe a client, and return the number of the subscription, the lowest free one.

        The number is returned as the length of a write, so it may be `room` at most. Raises OSError if it is higher,
        if the pattern is invalid, or if the client has too many subscriptions.
        """
        text, selection = self._pattern(pattern)
        subscriptions = client.subscriptions
        if len(subscriptions) >= self._settings.subscriptions:
            raise OSError(ENOSPC, f"too many subscriptions: the limit of a client is {self._settings.subscriptions}")
        number = next(free for free in range(len(subscriptions) + 1) if free not in subscriptions)
        if number > room:
            raise OSError(ENOSPC, f"the number {number} can't be returned as the length of a write of {room} bytes")
        subscription = Subscription(text, selection)
        subscription.channels.update(channel for channel, name in enumerate(self.registry) if subscription.takes(name))
        subscriptions[number] = subscription
        self._add_channels(client, subscription.channels - client.channels)
        return number

    def _pattern(self, pattern: bytes) -> tuple[str, Selection | None]:
        if b"\0" in pattern:
            raise OSError(EINVAL, "the expression has a NUL, which no name has")
        try:
            text = pattern.decode()
            return text, Selection("re:" + text)
        except UnicodeDecodeError:
            raise OSError(EINVAL, "the expression is not UTF-8") from None
        except BusError as error:
            if self.registry.number(text) is not None:
                return text, None
            raise OSError(EINVAL, str(error)) from None

    def unsubscribe(self, client: Client, number: int) -> None:
        """Remove a subscription. Raises OSError if the client has none with this number."""
        removed = client.subscriptions.pop(number, None)
        if removed is None:
            raise OSError(ENOENT, f"the client has no subscription {number}")
        remaining: set[int] = set().union(*(other.channels for other in client.subscriptions.values()))
        self._remove_channels(client, removed.channels - remaining)

    def _add_channels(self, client: Client, new: set[int]) -> None:
        """Add channels to a client; its backlog gets their buffered messages before the cursor."""
        for channel in new:
            self._subscribers[channel].add(client)
        client.channels |= new
        records, floors = self.store.records, client.floors
        unreceived = [
            serno
            for serno in range(self.store.oldest, client.cursor)
            if (channel := records[serno][0]) in new and serno >= floors.get(channel, 0)
        ]
        if unreceived:
            client.backlog = deque(merge(client.backlog, unreceived))
        for channel in new:
            floors.pop(channel, None)

    def _remove_channels(self, client: Client, removed: set[int]) -> None:
        """Remove channels from a client, and remember which messages it has received, for a later subscription."""
        records = self.store.records
        for channel in removed:
            self._subscribers[channel].discard(client)
            client.floors[channel] = client.cursor
        client.channels -= removed
        for serno in reversed(client.backlog):
            if (channel := records[serno][0]) in removed:
                client.floors[channel] = serno
        client.backlog = deque(serno for serno in client.backlog if records[serno][0] not in removed)

    # Messages.

    def write(self, client: Client, data: bytes) -> tuple[int, int]:
        """Execute a written command, or check a message, which publish() then publishes.

        Returns the length to answer, and the number of the channel of a message, else -1. Raises OSError.
        """
        size = len(data)
        if size >= HEAD:
            kind, number = TWO.unpack_from(data)
            if kind == MESSAGE:
                if number >= len(self._subscribers):
                    raise OSError(ENXIO, f"there is no channel {number}")
                if size - HEAD > self._settings.max_message:
                    raise OSError(EMSGSIZE, f"the message is too long: it may have {self._settings.max_message} bytes")
                return size, number
            if kind == UNSUBSCRIBE:
                if size != HEAD:
                    raise OSError(EINVAL, "unexpected data after the number of the subscription")
                self.unsubscribe(client, number)
                return 0, -1
        if size < WORD.size or WORD.unpack_from(data)[0] != SUBSCRIBE:
            raise OSError(EINVAL, "the type is missing or unknown, or its number is missing")
        return self.subscribe(client, data[WORD.size :].rstrip(b"\0"), size), -1

    def publish(self, channel: int, client: int, payload: bytes) -> tuple[int, Collection[Client]]:
        """Add a message to the buffer, and return its serial number and the clients that wait for it."""
        store = self.store
        serno = store.append(channel, client, payload)
        self.published += 1
        while len(store.records) > store.messages or store.used > store.bytes:
            self._drop(*store.drop())
        return serno, self.waiting & self._subscribers[channel] if self.waiting else ()

    def _drop(self, serno: int, channel: int) -> None:
        """Count a message that was dropped from the buffer as lost for each client that has not received it."""
        for client in self._subscribers[channel]:
            if client.cursor <= serno:
                client.lost += 1
                self.lost += 1
            elif client.backlog and client.backlog[0] == serno:
                client.backlog.popleft()
                client.lost += 1
                self.lost += 1

    def ready(self, client: Client) -> bool:
        """Whether a read would return data."""
        return bool(client.rest or client.backlog) or self._seek(client) is not None

    def _seek(self, client: Client) -> bytes | None:
        """Move the cursor of a client to its next message, and return that; None if there is none."""
        store = self.store
        records, channels = store.records, client.channels
        cursor, end = client.cursor, store.next
        if cursor < store.oldest:  # noqa: PLR1730 - a call would cost more than the rest
            cursor = store.oldest
        if not channels:
            return None  # without channels the cursor stays, because the client may subscribe to messages after it
        while cursor < end:
            channel, block = records[cursor]
            if channel in channels:
                client.cursor = cursor
                return block
            cursor += 1
        client.cursor = cursor
        return None

    def _refuse(self, client: Client, block: bytes, size: int, needed: int) -> None:
        """Raise OSError if a read has no room for a message; count the message as skipped if the read is repeated.

        A read is repeated if the last one had no room for the same message, and this one is no larger.
        """
        serno = serno_of(block)
        last = client.refused
        if size < META.size or last is None or last[0] != serno or size > last[1]:
            if size >= META.size:
                client.refused = serno, size
            raise OSError(EMSGSIZE, f"the next message needs {needed} bytes; a second read with {size} skips it")
        client.skipped += 1
        self.skipped += 1

    def take(self, client: Client, size: int, most: int) -> list[bytes]:
        """The next whole messages, as many as fit, or an empty list. Raises OSError if the first message doesn't fit.

        A single message may lose padding that does not fit. A message is skipped if it does not fit into a second
        read that is no larger. A message that is longer than the longest read, which is `most` bytes, is returned in
        parts.
        """
        if client.rest:
            part, client.rest = client.rest[:size], client.rest[size:]
            return [part]
        taken: list[bytes] = []
        records = self.store.records
        while True:
            backlog = client.backlog
            block = records[backlog[0]][1] if backlog else self._seek(client)
            if block is None:
                break
            if len(block) > size:
                if taken:
                    break
                if size < (needed := data_end(block)):
                    if size < most:
                        self._refuse(client, block, size, needed)
                        if backlog:
                            backlog.popleft()
                        else:
                            client.cursor += 1
                        continue
                    client.rest = block[size:]
                block = block[:size]
            taken.append(block)
            size -= len(block)
            if backlog:
                backlog.popleft()
            else:
                client.cursor += 1
            self.received += 1
            if not size:
                break
        return taken
