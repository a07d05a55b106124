"""A full disk, a clock set back and damaged files: the broker reports the error, limits the damage, and continues."""

import asyncio
import logging
import random
import shutil
import time
from pathlib import Path

import pytest

import busway
from busway.positions import Position
from tests.support.connection_events import next_event
from tests.support.limited_files import Limited
from tests.support.net import PATIENCE, Net, eventually, gather, within

LOG = Path("streams", "default", "log")
FLIPS = 1000


async def stored(bus: busway.Bus, end: Position) -> list[busway.Message]:
    got: list[busway.Message] = []
    async with bus.subscribe("**", since="all") as everything:
        while not got or got[-1].position != end:
            got.append(await everything.recv(timeout=PATIENCE))
    return got


async def test_a_full_disk(tmp_path: Path) -> None:
    async with (
        Limited(tmp_path) as broker,
        busway.connect(broker.address) as bus,
        busway.connect(broker.address) as other,
    ):
        places = {b"%d" % number: await bus.publish("t", b"%d" % number, durable=True) for number in range(20)}
        async with other.subscribe("**") as live, other.subscribe("t", since="all") as reader:
            await gather(reader, 20)
            await broker.limit(4000)
            outcomes = await within(
                asyncio.gather(
                    *(bus.publish("t", b"x" * 200 + b"%d" % number, durable=True) for number in range(100)),
                    return_exceptions=True,
                )
            )
            refused = [error for error in outcomes if not isinstance(error, Position)]
            assert refused
            for error in refused:
                assert isinstance(error, busway.BusError)
                assert error.code == 34
                assert "could not be stored" in error.reason
            for number, outcome in enumerate(outcomes):
                if isinstance(outcome, Position):
                    places[b"x" * 200 + b"%d" % number] = outcome
            with pytest.raises(busway.BusError) as caught:
                await bus.publish_many("t", [b"y" * 200] * 3000, durable=True)
            assert caught.value.code == 34
            # Reading goes on, and so does what is not stored.
            async with other.subscribe("t", since="all") as again:
                assert [message.payload for message in await gather(again, 20)] == [b"%d" % one for one in range(20)]
            await bus.publish("u", b"plain")
            while (await live.recv(timeout=PATIENCE)).payload != b"plain":
                pass
            await broker.limit(0)

            async def resumes() -> bool:
                try:
                    places[b"room"] = await bus.publish("t", b"room", durable=True)
                except busway.BusError as error:
                    assert error.code == 34
                    return False
                return True

            await eventually(resumes)
            places[b"after"] = end = await bus.publish("t", b"after", durable=True)
            found = [message for message in await stored(other, end) if not message.payload.startswith(b"y")]
            assert {message.payload: message.position for message in found} == places
            whole = await stored(other, end)
            assert [message.offset for message in whole] == list(range(len(whole)))
            assert [message.sequence for message in whole] == list(range(1, len(whole) + 1))
            while (await reader.recv(timeout=PATIENCE)).payload != b"after":
                pass
            assert (reader.lost, reader.missed) == (0, 0)


async def test_a_full_disk_and_messages_that_were_promised_from_memory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Who was told too early can't be told otherwise; but everybody else is, at once, and nobody waits for ever."""
    async with Limited(tmp_path) as broker, busway.connect(broker.address) as bus:
        stream = await bus.create_stream("fast", ["t"], safety="memory")
        for turn in range(2):
            await broker.limit(4000 * (turn + 1))
            count = 0
            with pytest.raises(busway.StoreFailed, match="could not be stored"):
                for _ in range(1_000_000):
                    await within(bus.publish("t", b"x" * 1000, durable=True))
                    count += 1
            info = await stream.info()
            unwritten = int((info.stuck or "0").split()[0])
            assert 0 < unwritten <= count + 1  # the one that was refused may have been taken before that was known
            if turn == 0:
                await broker.limit(0)

                async def resumes() -> bool:
                    try:
                        await bus.publish("t", b"room", durable=True)
                    except busway.StoreFailed:
                        return False
                    return True

                await eventually(resumes)
                assert (await stream.info()).stuck is None
    told = capfd.readouterr().err
    assert told.count("acknowledged messages can't be written, and new ones are refused") == 2
    assert f"{unwritten} acknowledged messages are lost" in told
    async with busway.serve(data=tmp_path / "data") as server, server.connect() as bus:
        again = await bus.stream("fast")
        assert (await again.info()).next == info.next - unwritten


async def test_a_disk_that_is_full_again_and_again_tells_the_truth_of_each(tmp_path: Path) -> None:
    """Publishes in flight over many writes, of which some are done and some are not: who was told a place is there, and only who."""
    chance = random.Random(5)
    async with Limited(tmp_path) as broker, busway.connect(broker.address) as bus:
        places: dict[bytes, Position] = {}
        refused = 0
        for turn in range(30):
            size = sum(file.stat().st_size for file in (tmp_path / "data" / LOG).glob("*.log"))
            await broker.limit(size + chance.randrange(1, 30_000))

            async def publish(payload: bytes) -> bool:
                try:
                    places[payload] = await bus.publish(f"t/{len(payload) % 3}", payload, durable=True)
                except busway.BusError as error:
                    assert error.code == 34
                    return False
                return True

            async def burst(turn: int, begin: int) -> int:
                await bus.flush()  # so that they come in many portions
                names = [b"%d.%d " % (turn, begin + one) + b"." * chance.randrange(150) for one in range(20)]
                return (await asyncio.gather(*map(publish, names))).count(False)

            refused += sum(await within(asyncio.gather(*(burst(turn, 20 * one) for one in range(12)))))
            await broker.limit(0)
            await eventually(lambda turn=turn: publish(b"room %d" % turn))  # type: ignore[misc]
        assert refused > 30
        end = places[b"room 29"]
        got = await stored(bus, end)
        assert {message.payload: message.position for message in got} == places
        assert [message.offset for message in got] == list(range(len(got)))


async def test_a_clock_that_is_set_back(net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of storing never go back, so that since= by time gives no less than it should; sequences don't care."""
    now = time.time_ns()
    server = await net.serve(data=tmp_path / "data")
    bus = await net.connect()
    await bus.publish("t", b"before", durable=True)
    await server.stop(drain=0)
    folder = tmp_path / "data" / LOG
    # As if it had been written by a clock an hour ahead.
    from busway._core import Log

    log = Log.open(folder, max_age=0)
    log.append([("t", b"ahead", None, "", 0, 0, now, 0, 0)], now + 3600 * 10**9)
    log.close()
    await net.serve(data=tmp_path / "data")
    bus = await net.connect()
    place = await bus.publish("t", b"after", durable=True)
    assert (place.offset, place.sequence) == (2, 3)
    got = await stored(bus, place)
    times = [message.stored_ns or 0 for message in got]
    assert times == sorted(times)
    assert times[-1] >= now + 3600 * 10**9
    async with bus.subscribe("t", since="1h") as reader:
        assert [message.payload for message in await gather(reader, 3)] == [b"before", b"ahead", b"after"]


# Damage.


async def filled(net: Net, data: Path, count: int = 300) -> list[bytes]:
    """A folder of several buckets; what is in it."""
    server = await net.serve(data=data)
    assert server._hub is not None
    server._hub.streams.get("default").log.set(bucket_bytes=4000)
    payloads = [b"%d " % number + b"." * 50 for number in range(count)]
    async with net.client() as bus:
        for begin in range(0, count, 20):
            await bus.publish_many("t", payloads[begin : begin + 20], durable=True)
    await server.stop(drain=0)
    assert len(list((data / LOG).glob("*.log"))) > 3
    return payloads


async def look(net: Net, data: Path, payloads: list[bytes]) -> tuple[list[bytes], int, int]:
    """Open it: what can be read, how many the reader was told to be lost, and how much damage the broker knows of."""
    server = await net.serve(data=data)
    bus = await net.connect()
    events = bus.events()
    async with bus.subscribe("t", since="all") as reader:
        end = await bus.publish("t", b"end", durable=True)
        got: list[busway.Message] = []
        while not got or got[-1].position != end:
            got.append(await reader.recv(timeout=PATIENCE))
        offsets = [message.offset or 0 for message in got]
        assert offsets == sorted(set(offsets))
        assert all(message.payload == payloads[message.offset or 0] for message in got[:-1])
        lost = reader.lost
        if lost:
            await next_event(events, "gap")
        assert (await bus.publish("t", b"on", durable=True)).offset == end.offset + 1
    assert server._hub is not None
    damage = server._hub.streams.get("default").figures()["damage"]
    return [message.payload for message in got[:-1]], lost, damage


@pytest.mark.parametrize("what", ["missing", "truncated", "flipped", "zeroed"])
@pytest.mark.parametrize("which", [0, 2, -1])
async def test_a_damaged_bucket(
    net: Net, tmp_path: Path, what: str, which: int, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    payloads = await filled(net, data)
    bucket = sorted((data / LOG).glob("*.log"))[which]
    content = bytearray(bucket.read_bytes())
    if what == "missing":
        bucket.unlink()
    elif what == "truncated":
        bucket.write_bytes(content[: len(content) // 2])
    else:
        begin = len(content) // 2
        content[begin : begin + (1 if what == "flipped" else 300)] = b"\0" * (1 if what == "flipped" else 300)
        content[begin] ^= what == "flipped"
        bucket.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        got, lost, damage = await look(net, data, payloads)
    assert damage >= 1
    assert bucket.name in caplog.text
    assert len(got) >= len(payloads) - 60
    missing = len(payloads) - len(got)
    assert missing >= 1
    assert lost == missing or which in (0, -1)  # what was before the first, or behind the last, is not told as a gap


@pytest.mark.parametrize("what", ["gone", "stale", "empty", "garbage"])
async def test_an_index_is_only_a_help(net: Net, tmp_path: Path, what: str) -> None:
    data = tmp_path / "data"
    payloads = await filled(net, data)
    indexes = sorted((data / LOG).glob("*.idx"))
    old = indexes[0].read_bytes()
    for index in indexes:
        if what == "gone":
            index.unlink()
        else:
            index.write_bytes({"stale": old, "empty": b"", "garbage": random.Random(1).randbytes(500)}[what])
    got, lost, _ = await look(net, data, payloads)
    assert got == payloads
    assert lost == 0


async def test_damage_is_found_while_it_is_read(net: Net, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Under a running broker: the reader is told of the gap and goes on behind it."""
    data = tmp_path / "data"
    payloads = await filled(net, data)
    await net.serve(data=data)
    bucket = sorted((data / LOG).glob("*.log"))[2]
    content = bytearray(bucket.read_bytes())
    content[len(content) // 2] ^= 4
    bucket.write_bytes(content)
    bus = await net.connect()
    async with bus.subscribe("t", since="all") as reader:
        got = [message.payload for message in await gather(reader, len(payloads) - 1)]
        assert set(got) < set(payloads)
        assert reader.lost == 1
        await bus.publish("t", b"on", durable=True)
        assert (await gather(reader, 1))[0].payload == b"on"


@pytest.mark.parametrize("file", ["broker.json", "streams/default/stream.json"])
async def test_no_letter_of_a_setting_changes_unnoticed(
    tmp_path: Path, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the result is as good a setting: a name, a digit."""
    async with busway.serve(data=tmp_path):
        pass
    sound = (tmp_path / file).read_bytes()
    for at in range(len(sound)):
        content = bytearray(sound)
        content[at] ^= 1
        (tmp_path / file).write_bytes(content)
        caplog.clear()
        try:
            async with busway.serve(data=tmp_path):
                assert file in caplog.text, f"{bytes(content)!r} was taken"
        except busway.DataFailed as error:
            assert "stream.json" in str(error)


async def test_settings_written_by_hand_need_no_checksum(tmp_path: Path) -> None:
    folder = tmp_path / "streams" / "orders"
    folder.mkdir(parents=True)
    (folder / "stream.json").write_text('{"name": "orders", "topics": ["orders/**"], "max_age": 60}')
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        assert (await bus.publish("orders/1", b"", durable=True)).stream == "orders"


@pytest.mark.parametrize("part", range(4))
async def test_bit_flips_anywhere_in_a_data_folder(
    net: Net, tmp_path: Path, caplog: pytest.LogCaptureFixture, part: int
) -> None:
    """Each is found and told, costs at most the message it hit, and never keeps the rest from being read."""
    sound = tmp_path / "sound"
    payloads = await filled(net, sound, 120)
    files = [file.relative_to(sound) for file in sorted(sound.rglob("*")) if file.is_file() and file.stat().st_size]
    sizes = [(sound / file).stat().st_size for file in files]
    chance = random.Random(part)
    for flip in range(FLIPS // 4):
        copy = tmp_path / str(flip)
        shutil.copytree(sound, copy)
        [file] = chance.choices(files, sizes if flip % 2 else None)
        content = bytearray((copy / file).read_bytes())
        at = chance.randrange(len(content))
        content[at] ^= 1 << chance.randrange(8)
        (copy / file).write_bytes(content)
        caplog.clear()
        try:
            got, _, damage = await look(net, copy, payloads)
            assert damage or file.name in caplog.text, "nobody was told"
            assert len(got) >= len(payloads) - (file.suffix == ".log")
        except busway.DataFailed as error:
            assert str(file) in str(error) or file.name in str(error)
        except BaseException:
            print(f"flip {flip}: {file} at {at} of {len(content)}")
            raise
        finally:
            assert net.server is not None
            await net.server.stop(drain=0)
        shutil.rmtree(copy)


@pytest.mark.parametrize("setting", ["max_bytes", "max_count"])
async def test_a_limit_that_is_too_large_is_refused_and_harms_nothing(tmp_path: Path, setting: str) -> None:
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        for value in (2**63, 2**70):
            with pytest.raises(ValueError, match=f"{setting} must be a whole number from 1 to"):
                await bus.update_stream("default", **{setting: value})
        question = b'{"name": "default", "%s": 99999999999999999999}' % setting.encode()
        with pytest.raises(busway.Rejected, match=setting):
            await bus.request("$bus/stream/update", question)
        assert await bus.update_stream("default", **{setting: 2**63 - 1})
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        assert (await bus.publish("t", b"", durable=True)).offset == 0


async def test_a_channel_that_cannot_be_noted_is_refused(tmp_path: Path) -> None:
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        await bus.publish("t", b"", durable=True)
        for wrong in ({"max_deliveries": 2**70}, {"max_deliveries": 2**31}, {"lease": 1e300}):
            with pytest.raises((busway.Rejected, ValueError)):
                await bus.create_channel("default", "bad", **wrong)
        assert await bus.channels("default") == []
        async with bus.channel("default", "good") as jobs:
            await (await jobs.recv(timeout=PATIENCE)).ack()
