"""The streams of a broker: invalid data folders, and waiting clients when a stream is removed."""

import asyncio
import contextlib
import json
import os
import resource
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import busway
from busway.errors import Code
from tests.support.net import PATIENCE, Net, settle, until


async def made(folder: Path) -> None:
    """A data folder with a stream `orders` that holds one message."""
    async with busway.serve(data=folder) as server, server.connect() as bus:
        await bus.create_stream("orders", ["orders/**"])
        await bus.publish("orders/1", b"1", durable=True)


async def fails(folder: Path, *words: str) -> None:
    with pytest.raises(busway.DataFailed) as caught:
        await busway.serve(data=folder).start()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", ("orders", "stream.json", "truncated")),
        ("[]", ("orders", "stream.json")),
        ('{"name": "orders", "topics": ["a"], "colour": "red"}', ("orders", "colour")),
        ('{"name": "orders", "topics": ["a//b"]}', ("orders", "a//b")),
        ('{"name": "orders", "topics": []}', ("orders", "needs topics")),
        ('{"name": "orders", "topics": ["a"], "max_age": -1}', ("orders", "max_age")),
        ('{"name": "other", "topics": ["a"]}', ("'other'", "was the folder renamed?")),
    ],
)
@pytest.mark.parametrize("copy", [True, False])
async def test_a_broken_config_is_told_and_the_others_go_on(
    tmp_path: Path, content: str, words: tuple[str, ...], caplog: pytest.LogCaptureFixture, *, copy: bool
) -> None:
    await made(tmp_path)
    file, second = tmp_path / "streams/orders/stream.json", tmp_path / "streams/orders/stream.json.bak"
    good = file.read_bytes()
    assert second.read_bytes() == good
    file.write_text(content)
    if not copy:
        second.write_text("nothing")
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        assert all(word in caplog.text for word in words)
        if copy:
            assert (await (await bus.stream("orders")).info()).count == 1
            assert file.read_bytes() == good
            return
        assert [one.name for one in await bus.streams()] == ["default"]
        for refused in (bus.stream("orders"), bus.remove_stream("orders"), bus.create_stream("orders", ["orders/**"])):
            with pytest.raises(busway.BusError) as caught:
                await refused
            for word in (*words, "mend or remove it"):
                assert word in str(caught.value)
        assert (await bus.publish("orders/2", b"2", durable=True)).stream == "default"
    file.write_bytes(good)  # nothing was changed by the attempt
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        assert (await (await bus.stream("orders")).info()).count == 1
    assert second.read_bytes() == good


async def test_streams_that_overlap_are_refused_with_their_names(tmp_path: Path) -> None:
    await made(tmp_path)
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        await bus.create_stream("taken", ["taken/**"])
    (tmp_path / "streams/orders/stream.json").write_text('{"name": "orders", "topics": ["taken/x"]}')
    await fails(tmp_path, "overlaps")


async def test_the_default_stream_has_to_be_sound(tmp_path: Path) -> None:
    await made(tmp_path)
    for name in ("stream.json", "stream.json.bak"):
        (tmp_path / "streams/default" / name).write_text("nothing")
    await fails(tmp_path, "default", "stream.json")


async def test_there_are_only_so_many_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = busway.Settings(streams=3)
    async with busway.serve(data=tmp_path, settings=settings) as server, server.connect() as bus:
        for name in "ab":
            await bus.create_stream(name, [name])
        with pytest.raises(busway.LimitExceeded, match="there are 3 streams already"):
            await bus.create_stream("c", ["c"])
        await bus.create_stream("a", ["a"])  # it is there
        await bus.remove_stream("a")
        monkeypatch.setattr(resource, "getrlimit", lambda _: (70, 70))
        with pytest.raises(busway.LimitExceeded, match="of 70 file handles are in use"):
            await bus.create_stream("c", ["c"])
        monkeypatch.undo()
        await bus.create_stream("c", ["c"])
    assert sorted(one.name for one in (tmp_path / "streams").iterdir() if one.is_dir()) == ["b", "c", "default"]


async def test_long_work_is_not_done_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are removed, and very many topics listed, while others are served."""
    here = threading.get_ident()
    removed: list[int] = []
    rmtree = shutil.rmtree

    def watched(*given: Any, **more: Any) -> None:
        if Path(given[0]).exists():
            removed.append(threading.get_ident())
        rmtree(*given, **more)

    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        stream = await bus.create_stream("orders", ["orders/**"])
        await bus.publish("orders/1", b"1", durable=True)
        ran: list[Any] = []
        to_thread = asyncio.to_thread

        async def noted(work: Any, *given: Any, **more: Any) -> Any:
            ran.append(getattr(work, "__name__", work))
            return await to_thread(work, *given, **more)

        monkeypatch.setattr(asyncio, "to_thread", noted)
        assert [one.topic for one in await stream.topics()] == ["orders/1"]
        assert ran == ["topics", "_page"]
        monkeypatch.setattr(shutil, "rmtree", watched)
        await bus.remove_stream("orders")
        assert removed
        assert here not in removed
    assert not any(one.name.startswith(".") for one in (tmp_path / "streams").iterdir())


async def test_a_lost_config_is_told_an_unfinished_stream_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await made(tmp_path)
    (tmp_path / "streams/unfinished").mkdir()
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        assert [one.name for one in await bus.streams()] == ["default", "orders"]
    for name in ("stream.json", "stream.json.bak"):
        assert "missing" not in caplog.text
        (tmp_path / "streams/orders" / name).unlink()
    async with busway.serve(data=tmp_path):
        assert "stream.json is missing" in caplog.text


async def test_what_a_removal_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    await made(tmp_path)
    (tmp_path / "streams/orders").rename(tmp_path / "streams/.orders.removed")  # and here it was killed
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        assert [one.name for one in await bus.streams()] == ["default"]
    assert [folder.name for folder in (tmp_path / "streams").iterdir()] == ["default"]


async def test_a_file_where_the_folder_of_the_streams_should_be(tmp_path: Path) -> None:
    (tmp_path / "streams").write_bytes(b"")
    await fails(tmp_path, "streams")


async def test_a_second_server_on_one_folder_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    await made(tmp_path)
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        await fails(tmp_path, "in use by another server")
        await bus.publish("orders/1", b"2", durable=True)
        stream = await bus.stream("orders")
        assert [one.payload async for batch in stream.read() for one in batch] == [b"1", b"2"]


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """Root may write everywhere, so for a while the process is not root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody can come to, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="busway-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "data"


async def test_a_folder_that_cannot_be_written_or_read_is_refused(open_folder: Path) -> None:
    await made(open_folder)
    paths = [open_folder, *open_folder.rglob("*")]
    modes = {path: path.stat().st_mode for path in paths}
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    with nobody():
        await fails(open_folder, "stream", "ermission denied")
    (open_folder / "streams").chmod(0)
    with nobody():
        await fails(open_folder, "streams", "ermission denied")
    for path, mode in modes.items():
        path.chmod(mode)
    async with busway.serve(data=open_folder) as server, server.connect() as bus:
        assert [one.name for one in await bus.streams()] == ["default", "orders"]


async def test_a_stream_that_cannot_be_made_leaves_nothing(net: Net, tmp_path: Path) -> None:
    data = tmp_path / "data"
    await net.serve(data=data)
    bus = await net.connect()
    (data / "streams/blocked").write_bytes(b"a file where its folder would be")
    with pytest.raises(busway.StoreFailed, match="'blocked' can't be created"):
        await bus.create_stream("blocked", ["a"])
    assert [one.name for one in await bus.streams()] == ["default"]
    assert (await bus.publish("a", b"", durable=True)).stream == "default"
    (data / "streams/blocked").unlink()
    await bus.create_stream("blocked", ["a"])
    assert json.loads((data / "streams/blocked/stream.json").read_bytes())["topics"] == ["a"]


async def test_who_waits_for_a_stream_that_is_removed_hears_so(net: Net, tmp_path: Path) -> None:
    """Publishes that are on their way are stored and answered, or refused; none hangs."""
    await net.serve(data=tmp_path / "data")
    bus, other = await net.connect(), await net.connect()
    await bus.create_stream("s", ["t"], safety="synced")
    publishes = [asyncio.ensure_future(bus.publish("t", b"%d" % number, durable=True)) for number in range(500)]
    await asyncio.sleep(0)
    await other.remove_stream("s")
    outcomes = await asyncio.gather(*publishes, return_exceptions=True)
    places = [one for one in outcomes if isinstance(one, busway.Position)]
    errors = [one for one in outcomes if isinstance(one, BaseException)]
    assert len(places) + len(errors) == 500
    assert {type(one) for one in errors} <= {busway.Rejected}
    assert {one.code for one in errors} <= {Code.NO_STREAM}
    assert {place.stream for place in places} <= {"s", "default"}


async def test_the_engine_tells_those_who_wait(net: Net, tmp_path: Path) -> None:
    """The same with a log whose writer never gets to write: each of them is refused."""
    server = await net.serve(data=tmp_path / "data")
    bus = await net.connect()
    await bus.create_stream("s", ["t"], safety="synced")
    hub = server._hub
    assert hub is not None
    stream = hub.streams.by_name["s"]
    hub.loop.remove_reader(stream.log.fileno())  # the broker is deaf for what has been written
    publishes = [asyncio.ensure_future(bus.publish("t", b"%d" % number, durable=True)) for number in range(3)]
    await until(lambda: stream.log.next == 3)
    await bus.remove_stream("s")
    outcomes = await asyncio.gather(*publishes, return_exceptions=True)
    assert [(type(one), one.code) for one in outcomes] == [(busway.Rejected, Code.NO_STREAM)] * 3


async def test_who_is_behind_on_a_stream_that_is_removed_is_told_what_is_lost(net: Net) -> None:
    bus, reader = await net.connect(), await net.connect()
    events = reader.events()
    await bus.create_stream("s", ["t"])
    count = 3000
    await bus.publish_many("t", [b"x" * 1000] * count, durable=True)
    async with reader.subscribe("*", since="all", limit=10) as subscription:  # full long before the end
        await settle(bus, reader)
        await bus.remove_stream("s")
        await bus.publish("u", b"other", durable=True)
        got = 0
        while (await subscription.recv(timeout=PATIENCE)).payload != b"other":
            got += 1
        assert got < count
        assert subscription.lost == count - got
    async for event in events:
        if event.kind == "gap":
            assert event.count == count - got
            break


async def test_a_read_that_a_connection_did_not_wait_for_goes_to_nobody_else(net: Net) -> None:
    """The number of its connection may be another client's when the answer is ready."""
    server = await net.serve()
    bus = await net.connect()
    stream = await bus.create_stream("s", ["t"])
    await bus.publish("t", b"1", durable=True)
    hub = server._hub
    assert hub is not None
    inner, held = hub.streams.by_name["s"], []
    original = inner.read
    inner.read = lambda offset, most, again: (
        held.append(again) or (None if len(held) == 1 else original(offset, most, again))
    )
    async with net.client() as hasty:
        reading = asyncio.ensure_future(anext((await hasty.stream("s")).read()))  # its third request is the read
        await until(lambda: held)
        number = max(hub.sessions)
        reading.cancel()
        await asyncio.wait([reading])
    await until(lambda: len(hub.sessions) == 1)
    asked, release = asyncio.Event(), asyncio.Event()

    async def slow(message: busway.Message) -> bytes:
        asked.set()
        await release.wait()
        return b"the right answer"

    async with bus.serve("slow", slow), net.client() as next_one:
        assert max(hub.sessions) == number
        await next_one.streams()
        await next_one.streams()
        third = asyncio.ensure_future(next_one.request("slow", timeout=PATIENCE))
        await asked.wait()
        held[0]()
        await settle(bus, next_one)
        release.set()
        assert (await third).payload == b"the right answer"
    assert [one.payload async for batch in stream.read() for one in batch] == [b"1"]
    assert server.stats()["errors"] == 0


async def test_a_data_folder_of_an_earlier_version_keeps_its_limits(tmp_path: Path) -> None:
    for name, topics in (("default", "[]"), ("orders", '["orders/**"]')):
        folder = tmp_path / "data" / "streams" / name
        folder.mkdir(parents=True)
        (folder / "stream.json").write_text(f'{{"name": "{name}", "topics": {topics}, "max_age": 86400.0}}')
    async with busway.serve(data=tmp_path / "data") as server, server.connect() as bus:
        assert {one.name: one.max_age for one in await bus.streams()} == {"default": 86400.0, "orders": 86400.0}
