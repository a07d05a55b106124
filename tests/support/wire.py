"""Frames as docs/protocol.md describes them, written from that page alone: nothing of busway is imported here."""

import asyncio
import struct
from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise
from typing import Any, NamedTuple, Self

import msgspec

HELLO, WELCOME, CLOSE, PING, PONG, AWAY, FLOW = 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07
TOPIC, SENDER, STREAM, SERVERS = 0x08, 0x09, 0x0A, 0x0B
CHALLENGE, LOGIN = 0x0C, 0x0D
PUBLISH, PUSH, REQUEST, REPLY, CANCEL, ACCEPT = 0x10, 0x11, 0x12, 0x14, 0x15, 0x16
DELIVER, OFFER, CALL, MISSED, WITHDRAW, ASK, RECORD, GAP = 0x18, 0x19, 0x1A, 0x1B, 0x1C, 0x1D, 0x1E, 0x1F
SUBSCRIBE, UNSUBSCRIBE, SERVE, UNSERVE, HOLD = 0x20, 0x21, 0x22, 0x23, 0x24
RESULT, STORED = 0x28, 0x29
CHANNEL, UNCHANNEL, TAKE, ACK, NACK = 0x30, 0x31, 0x32, 0x33, 0x34
NODE, INTEREST = 0x40, 0x41
NAMES = {
    value: name for name, value in list(globals().items()) if name.isupper() and isinstance(value, int)
}  # kind -> name
FIELDS, CONFIRM, ERROR, KEEP, NO_ECHO, FULL, APART = 0x01, 0x02, 0x04, 0x40, 0x01, 0x01, 0x01
DURABLE, POST, PIN, UNKEEP, TIMES = 0x04, 0x08, 0x10, 0x20, 0x40
SINCE, REPLAY, LAST, OF_CHANNEL, AGAIN = 0x08, 0x02, 0x04, 0x08, 0x01
KEPT, WITHDRAWN, PUSHED, REQUESTED = 0x02, 0x04, 0x20, 0x80
LOCAL, REMOTE, SUBSCRIBE_LOCAL, SUBSCRIBE_REMOTE, SYNCED, WAIT = 0x04, 0x08, 0x10, 0x20, 0x01, 0x40
GATHER, PARTIAL, END, SHARED, ASKS, WATCH, LISTEN = 0x02, 0x08, 0x10, 0x01, 0x02, 0x02, 0x04


class Frame(NamedTuple):
    kind: int
    flags: int
    rest: bytes

    def __repr__(self) -> str:
        return f"{NAMES.get(self.kind, hex(self.kind))}(flags={self.flags:#x}, {self.rest!r})"


def frame(kind: int, rest: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack("<IBB", len(rest) + 2, kind, flags) + rest


def split(data: bytes) -> tuple[list[Frame], bytes]:
    """The whole frames of data, and what is left of it."""
    frames, at = [], 0
    while len(data) - at >= 4:
        (length,) = struct.unpack_from("<I", data, at)
        if len(data) - at < length + 4:
            break
        frames.append(Frame(data[at + 4], data[at + 5], data[at + 6 : at + 4 + length]))
        at += 4 + length
    return frames, data[at:]


def frames(data: bytes) -> list[Frame]:
    whole, left = split(data)
    assert not left, f"half a frame is left over: {left!r}"
    return whole


def boundaries(data: bytes) -> Iterator[int]:
    """Offsets at which one frame ends and the next begins, 0 and the end included."""
    at = 0
    yield at
    while at < len(data):
        at += struct.unpack_from("<I", data, at)[0] + 4
        yield at


def str16(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<H", len(raw)) + raw


def bin32(raw: bytes) -> bytes:
    return struct.pack("<I", len(raw)) + raw


# ---------------------------------------------------------------- what a client sends


def secret(number: int) -> bytes:
    """The secret of a test's client: any number stands for one."""
    return b"the secret of " + number.to_bytes(8)


def session(number: int) -> int:
    """The session that this client has at a broker."""
    return int.from_bytes(sha256(secret(number)).digest()[:8])


def greeting(number: int, name: str = "", *, version: int = 1, **more: Any) -> bytes:
    """HELLO as a broker wants it, with the secret of its session. The bare engine does not ask for one."""
    return hello(session(number), name, version=version, secret=secret(number), **more)


def hello(session: int, name: str = "", *, version: int = 1, **more: Any) -> bytes:
    fields = {"name": name, "session": session, "credentials": None, "agent": "page"} | more
    return frame(HELLO, struct.pack("<H", version) + b"BWAY" + msgspec.msgpack.encode(fields))


def topic(slot: int, text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return frame(TOPIC, struct.pack("<HI", 0, slot) + raw)


def message(
    kind: int,
    slot: int,
    payload: bytes,
    number: int,
    *,
    flags: int = 0,
    aux: int = 0,
    time: int = 0,
    fields: bytes | None = None,
    times: tuple[int, int] | None = None,
) -> bytes:
    body = struct.pack("<qQ", time, number)
    if fields is not None:
        flags |= FIELDS
        body += bin32(fields)
    body += payload
    if times is not None:
        flags |= TIMES
        body += struct.pack("<qq", *times)
    return frame(kind, struct.pack("<HII", 0, slot, aux) + body, flags)


def publish(slot: int, payload: bytes, number: int, **more: Any) -> bytes:
    return message(PUBLISH, slot, payload, number, **more)


def push(slot: int, payload: bytes, number: int, **more: Any) -> bytes:
    return message(PUSH, slot, payload, number, **more)


def request(slot: int, payload: bytes, number: int, **more: Any) -> bytes:
    return message(REQUEST, slot, payload, number, **more)


def reply(call: int, payload: bytes, *, code: int = 0) -> bytes:
    return frame(REPLY, struct.pack("<HQ", code, call) + payload, ERROR if code else 0)


def cancel(number: int) -> bytes:
    return frame(CANCEL, struct.pack("<HQ", 0, number))


def accept(offer: int, code: int = 0) -> bytes:
    return frame(ACCEPT, struct.pack("<HQ", code, offer))


def store(slot: int, payload: bytes, number: int, *, flags: int = 0, **more: Any) -> bytes:
    return message(PUBLISH, slot, payload, number, flags=flags | DURABLE, **more)


def subscribe(
    sub: int,
    number: int,
    pattern: str | bytes,
    *,
    group: str = "",
    policy: int = 0,
    flags: int = 0,
    rules: bytes = b"",
    since: Any = None,
) -> bytes:
    """`since` is what goes into MessagePack, or bytes as they are."""
    head = struct.pack("<BBIQ", policy, 0, sub, number)
    rest = head + str16(pattern) + str16(group) + bin32(rules)
    if since is not None:
        flags |= SINCE
        rest += bin32(since if isinstance(since, bytes) else msgspec.msgpack.encode(since))
    return frame(SUBSCRIBE, rest, flags)


def unsubscribe(sub: int, number: int) -> bytes:
    return frame(UNSUBSCRIBE, struct.pack("<HIQ", 0, sub, number))


def channel(id_: int, number: int, asked: Any, *, kind: int = CHANNEL) -> bytes:
    """CHANNEL with a map, or with raw bytes."""
    rest = asked if isinstance(asked, bytes) else msgspec.msgpack.encode(asked)
    return frame(kind, struct.pack("<HIQ", 0, id_, number) + rest)


def unchannel(id_: int, number: int) -> bytes:
    return channel(id_, number, b"", kind=UNCHANNEL)


def take(id_: int, number: int, most: int, milliseconds: int = 0, *, whole: bool = False) -> bytes:
    rest = struct.pack("<II", most | (0x80000000 if whole else 0), milliseconds)
    return channel(id_, number, rest, kind=TAKE)


def untake(id_: int, number: int, taken: int) -> bytes:
    return channel(id_, number, struct.pack("<IQ", 0, taken), kind=TAKE)


def ack(id_: int, number: int, *entries: tuple[int, ...]) -> bytes:
    """Entries: first offset, how many, what (0 ack, 1 nack, 2 extend, 3 release, 6 return), milliseconds."""
    packed = (struct.pack("<QIB3xI", *(*entry, 0, 0)[:4]) for entry in entries)
    return channel(id_, number, b"".join(packed), kind=ACK)


def serve(service: int, number: int, text: str | bytes) -> bytes:
    return frame(SERVE, struct.pack("<HIQ", 0, service, number) + str16(text))


def unserve(service: int, number: int) -> bytes:
    return frame(UNSERVE, struct.pack("<HIQ", 0, service, number))


def ping(token: int) -> bytes:
    return frame(PING, struct.pack("<Q", token))


def pong(token: int) -> bytes:
    return frame(PONG, struct.pack("<Q", token))


def close(code: int, text: str = "") -> bytes:
    return frame(CLOSE, struct.pack("<H", code) + text.encode())


# ---------------------------------------------------------------- what a broker sends


class Delivery(NamedTuple):
    """A DELIVER, OFFER or CALL with its slots resolved; `extra` is the offer's or call's number."""

    ids: tuple[int, ...]
    topic: str
    sender: tuple[int, str] | None
    extra: int
    time: int
    number: int
    payload: bytes


class Result(NamedTuple):
    code: int
    number: int
    value: int
    text: str


class Reply(NamedTuple):
    code: int
    number: int
    payload: bytes


class Stored(NamedTuple):
    stream: str
    number: int
    count: int
    offset: int
    sequence: int


class Record(NamedTuple):
    """A stored message as it lies in the log; `sound` says whether its checksum fits."""

    offset: int
    sequence: int
    stored: int
    time: int
    session: int
    number: int
    expires: int
    due: int
    topic: str
    sender: str
    fields: bytes | None
    payload: bytes
    sound: bool

    @classmethod
    def read(cls, raw: bytes) -> Self:
        size, crc, *numbers = struct.unpack_from("<II QQqqQQqq", raw)
        fields, topic, sender, flags = struct.unpack_from("<IHBB", raw, 72)
        assert size == len(raw) - 4
        ends = [80, 80 + topic, 80 + topic + sender, 80 + topic + sender + fields]
        text, name, packed = (raw[a:b] for a, b in pairwise(ends))
        found = packed if flags & 1 else None
        return cls(*numbers, text.decode(), name.decode(), found, raw[ends[-1] :], crc32c(raw[8:]) == crc)

    def write(self, group: bool = False) -> bytes:
        packed = self.fields or b""
        topic, sender = self.topic.encode(), self.sender.encode()
        lengths = struct.pack("<IHBB", len(packed), len(topic), len(sender), (self.fields is not None) | 2 * group)
        rest = struct.pack("<QQqqQQqq", *self[:8]) + lengths + topic + sender + packed + self.payload
        return struct.pack("<II", len(rest) + 4, crc32c(rest)) + rest


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class Handed(NamedTuple):
    """A RECORD with its stream resolved."""

    ids: tuple[int, ...]
    stream: str
    deliveries: int
    flags: int
    record: Record


class Ended(NamedTuple):
    """An UNCHANNEL from the broker."""

    code: int
    channel: int
    text: str


class Gap(NamedTuple):
    sub: int
    stream: str
    begin: int
    end: int


class Reader:
    """Keeps the slots of one direction and reads what the broker sends."""

    def __init__(self) -> None:
        self.topics: dict[int, str] = {}
        self.senders: dict[int, tuple[int, str]] = {}
        self.streams: dict[int, tuple[str, str]] = {}
        """Guid and name."""

    def learn(self, got: Frame) -> bool:
        """Whether it was a TOPIC, SENDER or STREAM frame (and is remembered now)."""
        if got.kind == TOPIC:
            _, slot = struct.unpack_from("<HI", got.rest)
            self.topics[slot] = got.rest[6:].decode()
            return True
        if got.kind == SENDER:
            _, slot, session = struct.unpack_from("<HIQ", got.rest)
            self.senders[slot] = (session, got.rest[14:].decode())
            return True
        if got.kind == STREAM:
            _, number = struct.unpack_from("<HI", got.rest)
            self.streams[number] = got.rest[6:22].hex(), got.rest[22:].decode()
            return True
        return False

    def read(self, got: Frame) -> Any:
        if got.kind in (DELIVER, OFFER, CALL):
            count, slot, sender = struct.unpack_from("<HII", got.rest)
            ids = struct.unpack_from(f"<{count}I", got.rest, 10)
            at, extra = 10 + 4 * count, 0
            if got.kind != DELIVER:
                (extra,) = struct.unpack_from("<Q", got.rest, at)
                at += 8
            time, number = struct.unpack_from("<qQ", got.rest, at)
            at += 16
            if got.flags & FIELDS:
                at += 4 + struct.unpack_from("<I", got.rest, at)[0]
            return Delivery(ids, self.topics[slot], self.senders.get(sender), extra, time, number, got.rest[at:])
        if got.kind == RECORD:
            count, stream, deliveries = struct.unpack_from("<HII", got.rest)
            ids = struct.unpack_from(f"<{count}I", got.rest, 10)
            record = Record.read(got.rest[10 + 4 * count :])
            return Handed(ids, self.streams[stream][1], deliveries, got.flags & ~KEEP, record)
        if got.kind == STORED:
            _, stream, *numbers = struct.unpack("<HIQIQQ", got.rest)
            return Stored(self.streams[stream][1], *numbers)
        if got.kind == GAP:
            _, sub, stream, begin, end = struct.unpack("<HIIQQ", got.rest)
            return Gap(sub, self.streams[stream][1], begin, end)
        if got.kind == UNCHANNEL:
            return Ended(*struct.unpack_from("<HI", got.rest), got.rest[6:].decode())
        if got.kind == RESULT:
            return Result(*struct.unpack_from("<HQQ", got.rest), got.rest[18:].decode())
        if got.kind == REPLY:
            return Reply(*struct.unpack_from("<HQ", got.rest), got.rest[10:])
        if got.kind == MISSED:
            return struct.unpack("<HIQ", got.rest)[1:]
        if got.kind == WITHDRAW:
            return struct.unpack("<HIQQ", got.rest)[1:]
        if got.kind == CLOSE:
            return struct.unpack_from("<H", got.rest)[0], got.rest[2:].decode()
        if got.kind == WELCOME:
            return struct.unpack_from("<H", got.rest)[0], msgspec.msgpack.decode(got.rest[2:])
        if got.kind in (PING, PONG):
            return struct.unpack("<Q", got.rest)[0]
        return got.rest


class RawClient:
    """A client on a real socket that knows only the page."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout: float) -> None:
        self.reader, self.writer, self.timeout = reader, writer, timeout
        self.slots = Reader()

    @classmethod
    async def open(cls, address: str, *, timeout: float = 60) -> Self:
        if address.startswith("unix:"):
            pair = await asyncio.open_unix_connection(address.removeprefix("unix:"))
        else:
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            pair = await asyncio.open_connection(host.strip("[]"), int(port))
        return cls(*pair, timeout)

    @classmethod
    async def welcomed(cls, address: str, number: int, name: str = "", *, timeout: float = 60) -> Self:
        """A client that a broker has let in; its session is that of the number."""
        client = await cls.open(address, timeout=timeout)
        await client.send(greeting(number, name))
        client.version, client.welcome = await client.expect(WELCOME)
        return client

    version: int
    welcome: dict[str, Any]

    async def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))
        await self.writer.drain()

    async def frame(self) -> Frame:
        async with asyncio.timeout(self.timeout):
            (length,) = struct.unpack("<I", await self.reader.readexactly(4))
            raw = await self.reader.readexactly(length)
        return Frame(raw[0], raw[1], raw[2:])

    async def expect(self, kind: int) -> Any:
        """The next frame that is neither a slot nor a heartbeat, read; it must be of this kind."""
        while True:
            got = await self.frame()
            if self.slots.learn(got) or (got.kind in (PING, PONG) and got.kind != kind):
                continue
            assert got.kind == kind, f"expected {NAMES[kind]}, got {got}"
            return self.slots.read(got)

    async def rest(self) -> bytes:
        """Everything until the end of the connection (a reset counts as the end)."""
        chunks = []
        async with asyncio.timeout(self.timeout):
            try:
                while chunk := await self.reader.read(65536):
                    chunks.append(chunk)
            except ConnectionError:
                pass  # how it ends doesn't matter, only that it does
        return b"".join(chunks)

    async def last_words(self) -> tuple[int, str] | None:
        """The CLOSE before the end of the connection, or None if it ended without."""
        whole, _ = split(await self.rest())
        closes = [self.slots.read(got) for got in whole if got.kind == CLOSE]
        return closes[-1] if closes else None

    async def leave(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass  # the other side was quicker

    def abort(self) -> None:
        self.writer.transport.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()
