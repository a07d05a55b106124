"""A client on a socket that knows only docs/protocol.md, with the frames of kept messages and shared services."""

import struct
from typing import Any, NamedTuple

import msgspec

import busway
from tests.support import wire


class Got(NamedTuple):
    """A DELIVER, CALL, ASK or REPLY: what a test looks at."""

    kind: int
    flags: int
    ids: tuple[int, ...]
    topic: str
    sender: tuple[int, str] | None
    number: int
    fields: dict[str, Any]
    payload: bytes
    code: int = 0


class Peer(wire.RawClient):
    """Keeps its own numbers and slots, so that a test names topics and answers only."""

    number = 0
    session = 0

    @classmethod
    async def join(cls, server: busway.Server, number: int, name: str = "") -> "Peer":
        peer = await cls.welcomed(server.addresses[0], number, name)
        peer.session, peer.known = wire.session(number), {}
        return peer

    known: dict[str, int]

    async def slot(self, topic: str) -> int:
        if topic not in self.known:
            self.known[topic] = len(self.known)
            await self.send(wire.topic(self.known[topic], topic))
        return self.known[topic]

    def next(self) -> int:
        self.number += 1
        return self.number

    async def say(
        self,
        topic: str,
        payload: bytes = b"",
        flags: int = 0,
        *,
        kind: int = wire.PUBLISH,
        fields: dict[str, Any] | None = None,
        number: int = 0,
        aux: int = 0,
        each: int = 0,
    ) -> int:
        number = number or self.next()
        packed = None if fields is None else msgspec.msgpack.encode(fields)
        slot = await self.slot(topic)
        frame = bytearray(wire.message(kind, slot, payload, number, flags=flags, fields=packed, time=1_700, aux=aux))
        frame[6:8] = struct.pack("<H", each)
        await self.send(bytes(frame))
        return number

    async def result(self) -> wire.Result:
        return await self.expect(wire.RESULT)

    async def keep(self, topic: str, payload: bytes = b"", flags: int = wire.POST, **more: Any) -> wire.Result:
        await self.say(topic, payload, flags | wire.CONFIRM, **more)
        return await self.result()

    async def subscribe(self, sub: int, pattern: str, **more: Any) -> int:
        """Subscribe; the number that the RESULT tells. Kept ones are in `got` then."""
        await self.send(wire.subscribe(sub, self.next(), pattern, **more))
        self.got: list[Got] = []
        while True:
            got = await self.any()
            if isinstance(got, wire.Result):
                assert got.code == 0, got
                return got.value
            self.got.append(got)

    async def serve(self, service: int, topic: str, flags: int = wire.SHARED) -> wire.Result:
        await self.send(wire.frame(wire.SERVE, struct.pack("<HIQ", 0, service, self.next()) + wire.str16(topic), flags))
        return await self.result()

    async def reply(self, call: int, payload: bytes = b"", flags: int = 0, code: int = 0) -> None:
        await self.send(wire.frame(wire.REPLY, struct.pack("<HQ", code, call) + payload, flags))

    async def take(self, kind: int) -> Got:
        got = await self.any()
        assert isinstance(got, Got), got
        assert got.kind == kind, got
        return got

    async def any(self) -> Got | wire.Result:
        """The next frame that means something to a test."""
        while True:
            frame = await self.frame()
            if self.slots.learn(frame) or frame.kind in (wire.PING, wire.PONG):
                continue
            rest, fields = frame.rest, {}
            if frame.kind == wire.RESULT:
                return self.slots.read(frame)
            if frame.kind == wire.REPLY:
                code, number = struct.unpack_from("<HQ", rest)
                rest, fields = _fields(frame.flags, rest[10:])
                return Got(frame.kind, frame.flags, (), "", None, number, fields, rest, code)
            assert frame.kind in (wire.DELIVER, wire.CALL, wire.ASK), frame
            count, slot, sender = struct.unpack_from("<HII", rest)
            ids = struct.unpack_from(f"<{count}I", rest, 10)
            at = 10 + 4 * count
            number = struct.unpack_from("<Q", rest, at + (8 if frame.kind == wire.DELIVER else 0))[0]
            at += 16 if frame.kind == wire.DELIVER else 24
            rest, fields = _fields(frame.flags, rest[at:])
            flags = frame.flags & ~wire.KEEP
            return Got(
                frame.kind, flags, ids, self.slots.topics[slot], self.slots.senders.get(sender), number, fields, rest
            )

    async def nothing_more(self) -> None:
        """Whatever was under way has arrived, and there was nothing."""
        await self.send(wire.ping(77))
        while (frame := await self.frame()).kind != wire.PONG:
            assert self.slots.learn(frame) or frame.kind == wire.PING, frame


def _fields(flags: int, rest: bytes) -> tuple[bytes, dict[str, Any]]:
    if not flags & wire.FIELDS:
        return rest, {}
    (length,) = struct.unpack_from("<I", rest)
    return rest[4 + length :], msgspec.msgpack.decode(rest[4 : 4 + length])
