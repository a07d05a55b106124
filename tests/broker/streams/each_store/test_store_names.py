"""Databases have names that the operator gives: no client, definition or listing has the URL of one."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

import busway
from busway.broker.storage.record_format import frame
from busway.broker.streams.stores.names import store_of
from busway.cluster.definitions.apply import spec_of
from busway.cluster.definitions.definitions import DEFINE
from busway.cluster.definitions.file import FILE, MAGIC
from busway.errors import Code
from tests.support.cluster import Cluster
from tests.support.net import eventually, until


async def refused(bus: busway.Bus, what: str, **question: Any) -> str:
    with pytest.raises(busway.Rejected) as told:
        await bus.request(f"$bus/stream/{what}", json.dumps({"name": "s", "topics": ["t"], **question}))
    assert told.value.code == Code.INVALID_SETTING
    return str(told.value)


@pytest.mark.parametrize("more", [{}, {"store": "db"}, {"store": "disk"}])
async def test_a_client_does_not_reach_a_file(tmp_path: Path, more: dict[str, Any]) -> None:
    """As one of an earlier version asks for it."""
    file = tmp_path / "elsewhere" / "any.file"
    file.parent.mkdir()
    async with busway.serve(data=tmp_path / "data") as server, server.connect() as bus:
        text = await refused(bus, "create", url=f"sqlite:///{file}", **more)
        assert "--store NAME=URL" in text
        assert str(file) not in text
        await bus.create_stream("s", ["t"], store="db")
        assert "--store NAME=URL" in await refused(bus, "update", url=f"sqlite:///{file}")
    assert list(file.parent.iterdir()) == []


async def test_a_client_does_not_have_the_broker_dial() -> None:
    dialled = asyncio.Event()

    def met(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.set()
        writer.close()

    listener = await asyncio.start_server(met, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener, busway.serve() as server, server.connect() as bus:
        await refused(bus, "create", store="db", url=f"postgresql://user:sesame@127.0.0.1:{port}/x")
        await refused(bus, "create", store=f"postgresql://user:sesame@127.0.0.1:{port}/x")
    assert not dialled.is_set()


async def test_a_client_of_an_earlier_version_may_send_none(tmp_path: Path) -> None:
    async with busway.serve() as server, server.connect() as bus:
        question = {"name": "s", "topics": ["t"], "store": "memory", "url": None}
        await bus.request("$bus/stream/create", json.dumps(question))
        assert (await bus.stream("s")).name == "s"


async def test_a_store_by_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stores = {"billing": f"sqlite:///{tmp_path / 'sesame.sqlite'}"}
    async with busway.serve(data=tmp_path / "data", stores=stores) as server, server.connect() as bus:
        stream = await bus.create_stream("orders", ["orders/**"], store="billing")
        await bus.publish("orders/1", b"x", durable=True)
        info = await stream.info()
        assert info.store == "billing"
        shown = [repr(info), (await bus.request("$bus/stream/list")).text, (await bus.request("$bus/info")).text]
        assert not any("sesame" in text for text in shown)
    assert (tmp_path / "sesame.sqlite").exists()
    for file in (tmp_path / "data").rglob("*"):
        assert not file.is_file() or b"sesame" not in file.read_bytes()
    with pytest.raises(busway.DataFailed, match=r"'orders' can't be opened: .*no store 'billing'.*--store billing=URL"):
        await busway.serve(data=tmp_path / "data").start()
    async with busway.serve(data=tmp_path / "data", stores=stores) as server, server.connect() as bus:
        found = [message async for batch in (await bus.stream("orders")).read() for message in batch]
        assert [message.payload for message in found] == [b"x"]
    assert "sesame" not in caplog.text


async def test_a_store_that_is_not_there_is_refused(tmp_path: Path) -> None:
    stores = {"billing": f"sqlite:///{tmp_path / 'x.sqlite'}"}
    async with busway.serve(stores=stores) as server, server.connect() as bus:
        with pytest.raises(
            busway.Rejected, match=r"no store 'tape' \(it has memory, disk, db, billing\).*--store tape="
        ):
            await bus.create_stream("s", ["t"], store="tape")


def earlier(folder: Path, url: str) -> Path:
    """Write down a stream as an earlier version has done it."""
    (folder / "streams" / "orders").mkdir(parents=True)
    file = folder / "streams" / "orders" / "stream.json"
    plain = {"name": "orders", "topics": ["orders/**"], "store": "db", "safety": "written", "url": url, "former": []}
    file.write_text(json.dumps(plain))
    return file


async def test_a_stream_of_an_earlier_version_needs_a_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'old.sqlite'}?password=sesame"
    file = earlier(tmp_path / "data", url)
    before = file.read_bytes()
    for stores in ({}, {"billing": "sqlite:////other"}):
        with pytest.raises(busway.DataFailed, match="--store NAME=URL") as told:
            await busway.serve(data=tmp_path / "data", stores=stores).start()
        assert "sesame" not in str(told.value)
    assert file.read_bytes() == before


async def test_a_stream_of_an_earlier_version_gets_its_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'old.sqlite'}"
    file = earlier(tmp_path / "data", url)
    async with busway.serve(data=tmp_path / "data", stores={"billing": url}) as server, server.connect() as bus:
        assert (await (await bus.stream("orders")).info()).store == "billing"
        await bus.publish("orders/1", b"x", durable=True)
    for one in (file, file.with_name("stream.json.bak")):
        assert b"sqlite" not in one.read_bytes()
        assert json.loads(one.read_text())["store"] == "billing"
    assert (tmp_path / "old.sqlite").exists()


async def test_nodes_are_told_names_only(tmp_path: Path) -> None:
    """A node without that store says which flag it needs; the stream is there when it has been started with it."""
    stores = {"billing": f"sqlite:///{tmp_path / 'sesame-a.sqlite'}"}
    async with AsyncExitStack() as stack:
        cluster = Cluster(stack)
        a = await cluster.start(data=tmp_path / "a", stores=stores)
        b = await cluster.start(a, data=tmp_path / "b")
        await cluster.whole()
        bus = await cluster.client(a)
        await bus.create_stream("orders", ["orders/**"], store="billing")
        spec = spec_of(a.streams()["orders"])
        assert spec["store"] == "billing"
        assert "sesame" not in repr(spec)
        await until(b._hub.peers.members.agreement.figures)
        (lacks,) = b._hub.peers.members.agreement.figures()
        assert "--store billing=URL" in lacks["error"]
        await b.stop()
        own = {"billing": f"sqlite:///{tmp_path / 'sesame-b.sqlite'}"}
        again = await cluster.start(a, data=tmp_path / "b", stores=own)

        async def there() -> bool:
            return "orders" in again.streams() and again.streams()["orders"].store == "billing"

        await eventually(there)
    for one in ("a", "b"):
        for file in (tmp_path / one).rglob("*"):
            assert not file.is_file() or b"sesame" not in file.read_bytes(), file


def test_a_url_that_another_node_tells_is_dropped() -> None:
    spec = {"store": "db", "url": "postgresql://u:sesame@h/n", "topics": ["orders/**"]}
    (taken,) = DEFINE.read(msgspec.msgpack.encode([("orders", 5, "0" * 32, spec)]))
    assert taken.spec == {"store": "db", "topics": ["orders/**"]}


async def test_a_url_in_the_definitions_of_an_earlier_version_is_written_over(tmp_path: Path) -> None:
    spec = {"store": "db", "url": "postgresql://u:sesame@h/n", "topics": ["orders/**"]}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / FILE).write_bytes(frame(msgspec.msgpack.encode((("orders", 5, "0" * 32, spec), "")), MAGIC))
    async with busway.serve("tcp://127.0.0.1:0", data=tmp_path / "a", cluster="test"):
        pass
    assert b"sesame" not in (tmp_path / "a" / FILE).read_bytes()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=sqlite:////x", ("a", "sqlite:////x")),
        ("a=postgresql+psycopg://u:p=q@h/n", ("a", "postgresql+psycopg://u:p=q@h/n")),
        ("a=env:DATABASE", ("a", "postgresql://u:sesame@h/n")),
    ],
)
def test_a_store_as_it_is_written(text: str, found: tuple[str, str]) -> None:
    assert store_of(text, {"DATABASE": "postgresql://u:sesame@h/n"}) == found


def test_a_store_whose_url_is_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("sqlite:////x\n")
    assert store_of(f"a=file:{tmp_path / 'url'}") == ("a", "sqlite:////x")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("billing", "NAME=URL"),
        ("disk=sqlite:////x", "can't be called 'disk'"),
        ("a/b=sqlite:////x", "no name of a store"),
        ("a=env:MISSING", "variable MISSING, which is not set"),
        ("a=file:/not/there", "can't be read: No such file"),
        ("a=mysql://u:sesame@h/n", "no address of a database"),
        ("a=u:sesame@h", "no address of a database"),
    ],
)
def test_a_store_that_can_not_be(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as error:
        store_of(text, {})
    assert "sesame" not in str(error.value)


def test_stores_that_can_not_be() -> None:
    with pytest.raises(TypeError, match="dict of names"):
        busway.serve(stores=["sqlite:////sesame"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a str"):
        busway.serve(stores={"a": 5})  # type: ignore[dict-item]
