"""Kept messages through a running broker, seen by clients that know the page of the protocol only."""

import asyncio
import errno
import os
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

import busway
from busway.broker.retained import pin_file
from busway.errors import Code
from busway.fields import compile_where
from tests.support import wire
from tests.support.net import eventually, until, within
from tests.support.peer import Peer
from tests.support.wire import FIELDS, KEPT, PIN, POST, UNKEEP, WATCH, WITHDRAWN

ALICE, BOB, CAROL = 0xA1, 0xB0, 0xCA


class House:
    """A server that can be started again with the same folder, and its clients."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()

    async def serve(self, data: Path | None = None, fields: dict[str, Any] | None = None, **settings: Any):
        server = busway.serve("tcp://127.0.0.1:0", settings=busway.Settings(**settings), data=data, fields=fields)
        self.server = await self.stack.enter_async_context(server)
        return self.server

    async def peer(self, session: int, name: str = "") -> Peer:
        peer = await Peer.join(self.server, session, name)
        self.stack.callback(peer.abort)
        return peer

    async def ask(self, peer: Peer, **question: Any) -> Any:
        payload = msgspec.json.encode(question) if question else b""
        await peer.say("$bus/kept", payload, kind=wire.REQUEST)
        got = await peer.take(wire.REPLY)
        return (got.code, got.payload.decode()) if got.code else msgspec.json.decode(got.payload)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    async with house.stack:
        yield house


async def test_a_post_is_delivered_and_given_to_each_new_subscription_in_order(house: House) -> None:
    await house.serve()
    alice, bob = await house.peer(ALICE, "alice"), await house.peer(BOB)
    assert await bob.subscribe(1, "proc/*") == 0
    assert (await alice.keep("proc/a", b"1", fields={"v": 1})).value == 1
    live = await bob.take(wire.DELIVER)
    assert (live.flags, live.payload, live.fields) == (POST | FIELDS, b"1", {"v": 1})
    await alice.keep("proc/b", b"2")
    await alice.keep("proc/a", b"3", fields={"v": 1})
    await bob.take(wire.DELIVER)
    await bob.take(wire.DELIVER)
    assert await bob.subscribe(2, "**") == 2
    assert [(one.topic, one.payload, one.ids) for one in bob.got] == [("proc/b", b"2", (2,)), ("proc/a", b"3", (2,))]
    assert [one.flags for one in bob.got] == [KEPT | POST, KEPT | POST | FIELDS]
    assert {one.sender for one in bob.got} == {(wire.session(ALICE), "alice")}


async def test_a_new_subscription_gets_what_its_rules_select(house: House) -> None:
    await house.serve()
    alice, bob = await house.peer(ALICE), await house.peer(BOB)
    for venue in ("krk", "bin", "nyc"):
        await alice.keep("price", venue.encode(), PIN, fields={"venue": venue})
    assert await bob.subscribe(1, "price", rules=compile_where({"venue": ["krk", "nyc"]}).wire) == 2
    assert [one.payload for one in bob.got] == [b"krk", b"nyc"]
    await bob.send(wire.subscribe(2, 90, "price", rules=b"\xc1"), wire.subscribe(3, 91, "re:("))
    assert [(await bob.result()).code for _ in range(2)] == [Code.INVALID_RULE, Code.INVALID_PATTERN]


async def test_a_message_without_confirm_is_answered_only_if_it_is_refused(house: House) -> None:
    await house.serve(kept=1)
    alice = await house.peer(ALICE)
    await alice.say("a", b"", POST)
    await alice.nothing_more()
    await alice.say("b", b"", POST, number=77)
    result = await alice.result()
    assert (result.code, result.number) == (Code.TOO_MANY_KEPT, 77)
    assert "1 retained messages" in result.text
    await alice.nothing_more()


async def test_what_comes_again_under_its_id_is_not_delivered_again(house: House) -> None:
    await house.serve()
    alice, bob = await house.peer(ALICE), await house.peer(BOB)
    await bob.subscribe(1, "t")
    await alice.keep("t", b"1", number=5)
    await bob.take(wire.DELIVER)
    assert (await alice.keep("t", b"1", number=5)).code == Code.OK
    await bob.nothing_more()


async def test_a_post_and_a_pin_are_taken_back(house: House) -> None:
    await house.serve()
    alice, bob, carol = await house.peer(ALICE, "alice"), await house.peer(BOB), await house.peer(CAROL, "alice")
    await bob.subscribe(1, "t")
    await bob.subscribe(2, "*", flags=WATCH)
    await bob.subscribe(3, "t", flags=WATCH, rules=compile_where({"n": 1}).wire)
    for kind in (POST, PIN):
        await alice.keep("t", b"1", kind, fields={"n": 1}, number=kind)
        assert (await bob.take(wire.DELIVER)).flags == kind | FIELDS
        assert (await alice.keep("t", b"", kind | UNKEEP, fields={"n": 2})).value == 0
        who = alice if kind == POST else carol
        assert (await who.keep("t", b"", kind | UNKEEP, fields={"n": 1})).value == 1
        gone = await bob.take(wire.DELIVER)
        assert (gone.flags, gone.payload, gone.number) == (kind | FIELDS | WITHDRAWN, b"1", kind)
        assert sorted(gone.ids) == [2, 3]
        assert (await who.keep("t", b"", kind | UNKEEP, fields={"n": 1})).value == 0
    await bob.nothing_more()
    assert await bob.subscribe(9, "t") == 0


async def test_a_connection_that_is_taken_over_loses_nothing(house: House) -> None:
    await house.serve(grace=0.0)
    alice, bob = await house.peer(ALICE), await house.peer(BOB)
    await bob.subscribe(1, "**", flags=WATCH)
    await alice.keep("a", b"1")
    await bob.take(wire.DELIVER)
    again = await house.peer(ALICE)
    assert (await alice.last_words())[0] == Code.SESSION_TAKEN
    await bob.nothing_more()
    again.abort()
    assert (await bob.take(wire.DELIVER)).flags == POST | WITHDRAWN


async def test_a_subscription_id_that_is_used_again_watches_no_more(house: House) -> None:
    await house.serve()
    alice, bob = await house.peer(ALICE), await house.peer(BOB)
    await bob.subscribe(1, "a", flags=WATCH)
    await bob.send(wire.unsubscribe(1, 90))
    await bob.result()
    await bob.subscribe(1, "b")
    await alice.keep("a", b"")
    await alice.keep("a", b"", POST | UNKEEP)
    await bob.nothing_more()


async def test_watchers_go_with_their_connection(house: House) -> None:
    server = await house.serve()
    bob = await house.peer(BOB)
    await bob.subscribe(1, "a", flags=WATCH)
    assert server.stats()["watchers"] == 1
    bob.abort()
    await until(lambda: server.stats()["watchers"] == 0)


async def test_pins_stay_the_same_under_a_server_with_other_fields(house: House, tmp_path: Path) -> None:
    for region in ("a", "b"):
        server = await house.serve(fields={"region": region}, data=tmp_path / "data")
        alice = await house.peer(ALICE, "m")
        await alice.keep("cfg", region.encode(), PIN, number=1 + (region == "b"))
        await server.stop()
    await house.serve(data=tmp_path / "data")
    alice = await house.peer(ALICE, "m")
    assert await alice.subscribe(1, "cfg") == 1
    assert (alice.got[0].payload, alice.got[0].fields) == (b"b", {})
    assert (await alice.keep("cfg", b"", PIN | UNKEEP, number=9)).value == 1


async def test_more_is_kept_than_a_connection_should_have_waiting(house: House) -> None:
    """It is handed over in portions, in order, and what changes meanwhile is not missed."""
    server = await house.serve(outbox=4 << 20)
    for number in range(3):
        poster = await house.peer(100 + number)
        for i in range(10):
            assert (await poster.keep(f"k/{number}/{i}", bytes(1 << 20), number=1 + i)).code == Code.OK
    alice, bob = await house.peer(ALICE), await house.peer(BOB)
    await alice.keep("k/gone", b"", number=1)
    await bob.send(wire.subscribe(1, 1, "k/**", flags=WATCH))
    await bob.take(wire.DELIVER)
    assert server.stats()["outbox_bytes"] < 4 << 20
    await alice.keep("k/new", b"", number=2)
    topics = []
    while not isinstance(frame := await bob.any(), wire.Result):
        topics.append(frame.topic)
    assert topics[-1] == "k/new"
    handed = [f"k/{poster}/{number}" for poster in range(3) for number in range(10)]
    assert sorted(topics[:-1]) == sorted([*handed[1:], "k/gone"])


class TestListing:
    async def test_what_is_kept_is_listed(self, house: House) -> None:
        server = await house.serve()
        alice = await house.peer(ALICE, "alice")
        await alice.keep("a", b"text", fields={"n": 1, "raw": b"\x00\xff", "deep": {"l": [b"x", None, 1.5]}})
        await alice.keep("b", b"\xff\x00", PIN, number=9)
        found = await house.ask(alice)
        assert (found["total"], found["skip"]) == (2, 0)
        assert found["kept"] == [
            {
                "id": f"{wire.session(ALICE):016x}{1:016x}",
                "kind": "post",
                "topic": "a",
                "sender": "alice",
                "session": f"{wire.session(ALICE):016x}",
                "time": 1_700,
                "fields": {"n": 1, "raw": {"base64": "AP8="}, "deep": {"l": [{"base64": "eA=="}, None, 1.5]}},
                "size": 4,
                "payload": "text",
            },
            {
                "id": f"{wire.session(ALICE):016x}{9:016x}",
                "kind": "pin",
                "topic": "b",
                "sender": "alice",
                "session": f"{wire.session(ALICE):016x}",
                "time": 1_700,
                "fields": {},
                "size": 2,
                "payload": {"base64": "/wA="},
            },
        ]
        assert server.stats()["kept"] == 2

    async def test_parts_of_it(self, house: House) -> None:
        await house.serve()
        alice = await house.peer(ALICE)
        for number in range(10):
            await alice.keep(f"t/{number}", b"%d" % (number % 2), fields={"odd": number % 2 == 1})
        rules = compile_where({"odd": True}).wire
        found = await house.ask(alice, pattern="t/*", rules=rules, skip=1, most=2)
        assert found["total"] == 5
        assert [one["topic"] for one in found["kept"]] == ["t/3", "t/5"]
        assert (await house.ask(alice, pattern="re:("))[0] == Code.INVALID_PATTERN
        assert (await house.ask(alice, rules=b"\xc1"))[0] == Code.INVALID_RULE
        for wrong in ({"most": -1}, {"pattern": 1}, {"rules": "?"}, {"what": 1}):
            assert (await house.ask(alice, **wrong))[0] == Code.HANDLER_ERROR

    async def test_a_reply_never_gets_larger_than_a_frame(self, house: House) -> None:
        await house.serve(frame=64 * 1024)
        alice = await house.peer(ALICE)
        await alice.keep("large", b"\x01" * 60_000)
        for number in range(20):
            await alice.keep(f"t/{number}", b"y" * 10_000)
        listed: list[dict[str, Any]] = []
        while len(listed) < 21:
            page = (await house.ask(alice, skip=len(listed)))["kept"]
            assert page
            listed += page
        assert [one["topic"] for one in listed] == ["large", *(f"t/{n}" for n in range(20))]
        assert [one["payload"] is None for one in listed] == [True] + [False] * 20
        assert listed[0]["size"] == 60_000

    async def test_the_figures_of_the_broker(self, house: House, tmp_path: Path) -> None:
        await house.serve(tmp_path / "data")
        alice = await house.peer(ALICE)
        await alice.keep("a", b"1")
        await alice.keep("b", b"2", PIN)
        await alice.subscribe(1, "x", flags=WATCH)
        await alice.say("$bus/info", b"", kind=wire.REQUEST)
        info = msgspec.json.decode((await alice.take(wire.REPLY)).payload)
        kept = info["kept"]
        assert (kept["posts"], kept["pins"], kept["watchers"], kept["bytes"]) == (1, 1, 1, 2 * (1 + 16 + 1))
        assert kept["store"]["file"] == str(tmp_path / "data" / "pins.log")
        assert (kept["store"]["records"], kept["store"]["damaged"]) == (1, 0)
        assert info["stats"]["kept"] == 2


class TestData:
    async def test_pins_are_there_after_a_restart_and_posts_are_not(self, house: House, tmp_path: Path) -> None:
        first = await house.serve(tmp_path)
        alice = await house.peer(ALICE, "alice")
        await alice.keep("a", b"1", PIN, fields={"n": 1})
        await alice.keep("b", b"2", PIN)
        await alice.keep("a", b"3", PIN, fields={"n": 1}, number=99)
        await alice.keep("c", b"4", PIN)
        assert (await alice.keep("c", b"", PIN | UNKEEP)).value == 1
        await alice.keep("d", b"5", POST)
        await (await house.peer(CAROL, "carol")).keep("b", b"6", PIN)
        await first.stop(0)
        second = await house.serve(tmp_path)
        assert second.guid == first.guid
        bob = await house.peer(BOB)
        assert await bob.subscribe(1, "**") == 3
        assert [(one.topic, one.payload, one.fields, one.sender) for one in bob.got] == [
            ("b", b"2", {}, (wire.session(ALICE), "alice")),
            ("a", b"3", {"n": 1}, (wire.session(ALICE), "alice")),
            ("b", b"6", {}, (wire.session(CAROL), "carol")),
        ]
        assert bob.got[1].number == 99
        again = await house.peer(ALICE + 1, "alice")
        assert (await again.keep("b", b"", PIN | UNKEEP)).value == 1
        assert (await again.keep("a", b"7", PIN, fields={"n": 1})).value == 1

    async def test_a_pin_is_answered_when_it_is_on_disk(self, house: House, tmp_path: Path) -> None:
        await house.serve(tmp_path)
        alice = await house.peer(ALICE)
        for number in range(20):
            await alice.keep(f"t/{number}", b"", PIN)
            assert (tmp_path / "pins.log").read_bytes().count(pin_file.MAGIC) == number + 1

    async def test_what_follows_a_pin_stays_behind_it(self, house: House, tmp_path: Path) -> None:
        await house.serve(tmp_path)
        alice, bob = await house.peer(ALICE), await house.peer(BOB)
        await bob.subscribe(1, "t")
        for number in range(1, 51):
            await alice.say("t", b"%d" % number, PIN if number % 2 else 0)
        assert [(await bob.take(wire.DELIVER)).payload for _ in range(50)] == [b"%d" % n for n in range(1, 51)]

    async def test_a_disk_that_cannot_be_written_refuses_the_pin_only(
        self, house: House, tmp_path: Path, monkeypatch
    ) -> None:
        server = await house.serve(tmp_path)
        alice, bob = await house.peer(ALICE), await house.peer(BOB)
        await bob.subscribe(1, "**")
        await alice.keep("old", b"", PIN)
        await bob.take(wire.DELIVER)

        def full(fd: int, data: bytes, at: int) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "pwrite", full)
        refused = await alice.keep("t", b"", PIN)
        assert refused.code == Code.STORE_FAILED
        assert "No space left on device" in refused.text
        assert (await alice.keep("old", b"", PIN | UNKEEP)).code == Code.STORE_FAILED
        assert (await alice.keep("t", b"", POST)).code == Code.OK
        assert (await bob.take(wire.DELIVER)).flags == POST
        monkeypatch.undo()
        assert (await alice.keep("t", b"", PIN)).code == Code.OK
        assert server.stats()["kept"] == 3

    async def test_a_sender_that_vanishes_before_its_pin_is_written(
        self, house: House, tmp_path: Path, monkeypatch
    ) -> None:
        """It is kept, so it is published; sent again under its id it is not published again."""
        server = await house.serve(tmp_path)
        alice, bob = await house.peer(ALICE, "alice"), await house.peer(BOB)
        await bob.subscribe(1, "t")
        loop, real = asyncio.get_running_loop(), os.fsync
        begun, go_on = asyncio.Event(), asyncio.Event()

        def slow(fd: int) -> None:
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
            real(fd)

        monkeypatch.setattr(os, "fsync", slow)
        await alice.say("t", b"1", PIN, number=5)
        await within(begun.wait())
        alice.abort()
        await until(lambda: server.stats()["connections"] == 1)
        go_on.set()
        await until(lambda: server.stats()["kept"] == 1)
        assert (await bob.take(wire.DELIVER)).payload == b"1"
        again = await house.peer(ALICE, "alice")
        assert (await again.keep("t", b"1", PIN, number=5)).code == Code.OK
        await bob.nothing_more()

    async def test_a_start_that_fails_lets_the_folder_go(self, house: House, tmp_path: Path) -> None:
        first = await house.serve(tmp_path / "one")
        with pytest.raises(busway.ListenFailed):
            await busway.serve(first.addresses[0], data=tmp_path / "two").start()
        await house.serve(tmp_path / "two")

    async def test_a_damaged_store_starts_and_tells(self, house: House, tmp_path: Path, caplog) -> None:
        first = await house.serve(tmp_path)
        alice = await house.peer(ALICE)
        for number in range(5):
            await alice.keep(f"t/{number}", b"", PIN)
        await first.stop(0)
        data = bytearray((tmp_path / "pins.log").read_bytes())
        data[len(data) // 2] ^= 1
        (tmp_path / "pins.log").write_bytes(data)
        server = await house.serve(tmp_path)
        assert server.stats()["kept"] == 4
        assert "pins.log: a record with a wrong checksum" in caplog.text
        bob = await house.peer(BOB)
        await bob.say("$bus/info", b"", kind=wire.REQUEST)
        info = msgspec.json.decode((await bob.take(wire.REPLY)).payload)
        assert info["kept"]["store"]["damaged"] == 1

    async def test_clients_of_this_process_can_be_made_before_the_start(self, house: House, tmp_path: Path) -> None:
        for _ in range(2):
            server = busway.serve(data=tmp_path)
            bus = server.connect()
            async with server, bus:
                assert await bus.publish("t", b"", confirm=True) == 0

    @pytest.mark.parametrize(
        ("wrong", "error"),
        [({"data": 3}, TypeError), ({"fields": ["a"]}, TypeError), ({"fields": {".id": 1}}, busway.InvalidFields)],
    )
    def test_wrong_arguments_are_found_at_once(self, wrong: dict[str, Any], error: type[Exception]) -> None:
        with pytest.raises(error):
            busway.serve(**wrong)


async def test_a_post_that_is_a_pin_too_is_no_message(house: House) -> None:
    await house.serve()
    alice = await house.peer(ALICE)
    await alice.say("t", b"", POST | PIN)
    assert (await alice.last_words())[0] == Code.PROTOCOL


async def test_random_frames_with_kept_flags_end_no_server(house: House) -> None:
    server = await house.serve()
    for flags in range(256):
        peer = await house.peer(1000 + flags)
        await peer.slot("t")
        await peer.send(
            wire.frame(wire.PUBLISH, struct.pack("<HIIqQ", 0, 0, 0, 0, 1) + b"\x01\x00\x00\x00\x80x", flags)
        )
        peer.abort()
    alice = await house.peer(ALICE)
    assert (await alice.keep("t", b"")).code == Code.OK
    assert server.stats()["errors"] == 0

    async def alone() -> bool:
        return server.stats()["connections"] == 1

    await eventually(alone)
