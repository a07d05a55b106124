"""Who has read what: clients, their subscriptions, and the messages that are kept for them. A machine.

A client gets the first message that it has not received and that one of its subscriptions takes; also one that is older than what
it has read, if it subscribes to that channel only now. Each has a cursor. What lies before it was received, was not asked
for, or stands in its backlog.
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
from busway.gateway.files.fusebus.kept_messages import KeptMessages, data_end, serno_of
from busway.gateway.files.fusebus.registry import Registry

NATIVE: Final = 1 << 63
"""From here on are the numbers of those who publish to the bus itself."""


@dataclass(slots=True)
class Subscription:
    """A regular expression, or the name of a channel, and the channels that it takes."""

    text: str
    selection: Selection | None
    channels: set[int] = field(default_factory=set)

    def takes(self, name: str) -> bool:
        return name == self.text or (self.selection is not None and self.selection.covers(name))


@dataclass(slots=True, eq=False)
class Client:
    """One open file `fusebus`."""

    number: int
    at: int
    """Serial number from which on it has to look."""
    channels: set[int] = field(default_factory=set)
    """Those that its subscriptions take."""
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    backlog: deque[int] = field(default_factory=deque)
    """Serial numbers before its cursor that it has not received and that its subscriptions take."""
    floors: dict[int, int] = field(default_factory=dict)
    """By channel that it has given up: what is older was received."""
    lost: int = 0
    """Messages that it would have got and that are gone."""
    skipped: int = 0
    """Messages that its reads had no room for, twice."""
    refused: tuple[int, int] | None = None
    """Serial number of the message that its last read had no room for, and that room."""
    rest: bytes = b""
    """What is left of a message that was longer than a read can be."""


class Exchange:
    """The whole of the two files, without a file."""

    def __init__(self, settings: Mount) -> None:
        self._settings = settings
        self.registry = Registry(settings.channels)
        self.store = KeptMessages(settings.messages, settings.bytes)
        self._audience: list[set[Client]] = []
        """By channel: clients with a subscription that takes it."""
        self.clients: dict[int, Client] = {}
        self._free: list[int] = []
        self.waiting: set[Client] = set()
        """Those that are to be told when there is something for them."""
        self.published = 0
        self.received = 0
        self.lost = 0
        self.skipped = 0

    # Channels.

    def register(self, names: Iterable[str]) -> None:
        """Register checked names. Subscriptions that are there take them from now on."""
        for name in names:
            number = self.registry.add(name)
            if number < len(self._audience):
                continue
            self._audience.append(set())
            for client in self.clients.values():
                for one in client.subscriptions.values():
                    if one.takes(name):
                        one.channels.add(number)
                        self._audience[number].add(client)
                        client.channels.add(number)

    # Clients.

    def open(self) -> Client:
        """A client, with the lowest number that is free. It begins with the oldest message. OSError: there are too many."""
        if len(self.clients) >= self._settings.clients:
            raise OSError(ENFILE, f"there are {self._settings.clients} clients at most")
        number = heappop(self._free) if self._free else len(self.clients)
        client = self.clients[number] = Client(number, self.store.oldest)
        return client

    def close(self, client: Client) -> None:
        """It is gone, with its subscriptions."""
        if self.clients.pop(client.number, None) is not None:
            heappush(self._free, client.number)
            self.waiting.discard(client)
            for channel in client.channels:
                self._audience[channel].discard(client)

    def subscribe(self, client: Client, pattern: bytes, room: int) -> int:
        """A subscription of a client; its number, the lowest that is free. OSError: no regular expression, or no room for the number.

        `room` is how much can be told as the length of a write.
        """
        text, selection = self._pattern(pattern)
        taken = client.subscriptions
        if len(taken) >= self._settings.subscriptions:
            raise OSError(ENOSPC, f"a client has {self._settings.subscriptions} subscriptions at most")
        number = next(one for one in range(len(taken) + 1) if one not in taken)
        if number > room:
            raise OSError(ENOSPC, f"the number {number} can't be told as the length of a write of {room} bytes")
        made = Subscription(text, selection)
        made.channels.update(at for at, name in enumerate(self.registry) if made.takes(name))
        taken[number] = made
        self._widen(client, made.channels - client.channels)
        return number

    def _pattern(self, pattern: bytes) -> tuple[str, Selection | None]:
        if b"\0" in pattern:
            raise OSError(EINVAL, "no name has a NUL in it")
        try:
            text = pattern.decode()
            return text, Selection("re:" + text)
        except UnicodeDecodeError:
            raise OSError(EINVAL, "no UTF-8") from None
        except BusError as error:
            if self.registry.number(text) is not None:
                return text, None
            raise OSError(EINVAL, str(error)) from None

    def unsubscribe(self, client: Client, number: int) -> None:
        """End one. OSError: the client has none of this number."""
        gone = client.subscriptions.pop(number, None)
        if gone is None:
            raise OSError(ENOENT, f"there is no subscription {number}")
        stay: set[int] = set().union(*(one.channels for one in client.subscriptions.values()))
        self._narrow(client, gone.channels - stay)

    def _widen(self, client: Client, new: set[int]) -> None:
        """It wants these channels, too: also what was passed over and is still kept."""
        for channel in new:
            self._audience[channel].add(client)
        client.channels |= new
        records, floors = self.store.records, client.floors
        passed = [
            serno
            for serno in range(self.store.oldest, client.at)
            if (channel := records[serno][0]) in new and serno >= floors.get(channel, 0)
        ]
        if passed:
            client.backlog = deque(merge(client.backlog, passed))
        for channel in new:
            floors.pop(channel, None)

    def _narrow(self, client: Client, gone: set[int]) -> None:
        """It does not want these any more, but may come back to them: remember what it has received."""
        records = self.store.records
        for channel in gone:
            self._audience[channel].discard(client)
            client.floors[channel] = client.at
        client.channels -= gone
        for serno in reversed(client.backlog):
            if (channel := records[serno][0]) in gone:
                client.floors[channel] = serno
        client.backlog = deque(serno for serno in client.backlog if records[serno][0] not in gone)

    # Messages.

    def write(self, client: Client, data: bytes) -> tuple[int, int]:
        """What was written: the length to tell, and for a message the number of its channel, else -1. OSError: it can't be.

        A message is not published by this: see publish().
        """
        size = len(data)
        if size >= HEAD:
            kind, number = TWO.unpack_from(data)
            if kind == MESSAGE:
                if number >= len(self._audience):
                    raise OSError(ENXIO, f"there is no channel {number}")
                if size - HEAD > self._settings.max_message:
                    raise OSError(EMSGSIZE, f"a message has {self._settings.max_message} bytes at most")
                return size, number
            if kind == UNSUBSCRIBE:
                if size != HEAD:
                    raise OSError(EINVAL, "something follows the number of the subscription")
                self.unsubscribe(client, number)
                return 0, -1
        if size < WORD.size or WORD.unpack_from(data)[0] != SUBSCRIBE:
            raise OSError(EINVAL, "no type, an unknown one, or its number is missing")
        return self.subscribe(client, data[WORD.size :].rstrip(b"\0"), size), -1

    def publish(self, channel: int, client: int, payload: bytes) -> tuple[int, Collection[Client]]:
        """Keep a message; its serial number, and who waits for it."""
        store = self.store
        serno = store.append(channel, client, payload)
        self.published += 1
        while len(store.records) > store.messages or store.used > store.bytes:
            self._drop(*store.drop())
        return serno, self.waiting & self._audience[channel] if self.waiting else ()

    def _drop(self, serno: int, channel: int) -> None:
        """The oldest is gone: whoever has not received it is told how many there were."""
        for client in self._audience[channel]:
            if client.at <= serno:
                client.lost += 1
                self.lost += 1
            elif client.backlog and client.backlog[0] == serno:
                client.backlog.popleft()
                client.lost += 1
                self.lost += 1

    def ready(self, client: Client) -> bool:
        """Whether a read would give something."""
        return bool(client.rest or client.backlog) or self._seek(client) is not None

    def _seek(self, client: Client) -> bytes | None:
        """The next message from the cursor on, which is moved there."""
        store = self.store
        records, channels = store.records, client.channels
        at, end = client.at, store.next
        if at < store.oldest:  # noqa: PLR1730 - a call would cost more than all of this
            at = store.oldest
        if not channels:
            return None  # and the cursor stays: it has passed over nothing
        while at < end:
            channel, block = records[at]
            if channel in channels:
                client.at = at
                return block
            at += 1
        client.at = at
        return None

    def _refuse(self, client: Client, block: bytes, size: int, needed: int) -> None:
        """A read has no room for a message. OSError: it is the first, or has less room; else the message is to be skipped."""
        serno = serno_of(block)
        before = client.refused
        if size < META.size or before is None or before[0] != serno or size > before[1]:
            if size >= META.size:
                client.refused = serno, size
            raise OSError(EMSGSIZE, f"the next message needs {needed} bytes; a second read with {size} skips it")
        client.skipped += 1
        self.skipped += 1

    def take(self, client: Client, size: int, most: int) -> list[bytes]:
        """The next messages, whole ones, as many as fit; none: there is none. OSError: the next one doesn't fit.

        A single message whose data fits is given without the padding that does not fit. A message that does not fit a second time,
        into no more room, is skipped. A message that is longer than a read can be is given in parts; `most` is how long one is if
        that is so.
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
                            client.at += 1
                        continue
                    client.rest = block[size:]
                block = block[:size]
            taken.append(block)
            size -= len(block)
            if backlog:
                backlog.popleft()
            else:
                client.at += 1
            self.received += 1
            if not size:
                break
        return taken
