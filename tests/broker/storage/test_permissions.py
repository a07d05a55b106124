"""Permissions of a data folder: only the user of the broker can read stored messages."""

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import busway
from busway.broker.storage import permissions
from tests.support.mirrored import Mirrored


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """One that takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(root: Path) -> list[str]:
    """Files and folders that other users have access to, as text."""
    paths = [root, *root.rglob("*")]
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in paths}
    return [f"{path.relative_to(root)} {mode:04o}" for path, mode in modes.items() if mode & 0o077]


async def used(data: Path, *, cluster: str | None = None) -> None:
    """A broker of which everything that is stored has been used."""
    address = f"unix:{data.parent / 'bus'}"
    async with busway.serve(address, data=data, cluster=cluster) as server, server.connect() as bus:
        for store in ("disk", "db"):
            await bus.create_stream(store, [f"{store}/**"], store=store)
            await bus.publish(f"{store}/1", b"1", durable=True)
            async with bus.channel(store, "work") as jobs:
                await (await jobs.recv()).ack()
        await bus.pin("config", b"{}")
        await bus.create_stream("gone", ["gone"])
        await bus.remove_stream("gone")


@pytest.mark.parametrize("cluster", [None, "site"])
async def test_files_and_folders_are_for_the_user_of_the_broker(tmp_path: Path, cluster: str | None) -> None:
    data = tmp_path / "made" / "data"
    await used(data, cluster=cluster)
    assert {"pins.log", "streams"} <= {one.name for one in data.iterdir()}
    assert {"channels", "stream.json", "log"} <= {one.name for one in (data / "streams/disk").iterdir()}
    assert "stream.sqlite" in {one.name for one in (data / "streams/db").iterdir()}
    assert open_to_others(tmp_path / "made") == []
    assert all(permissions._is_own(one.name) for one in data.iterdir())


async def test_a_copy_of_another_node_is_for_the_user_of_the_broker(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        nodes = Mirrored(stack, tmp_path / "nodes")
        first, _ = await nodes.pair()
        async with first.connect() as bus:
            await bus.create_stream("s", ["s"], safety="mirrored")
            await bus.publish("s", b"1", durable=True)
    assert list((tmp_path / "nodes/b/mirrors").rglob("stream.json"))
    assert open_to_others(tmp_path / "nodes") == []


async def test_a_folder_of_an_earlier_version_is_closed_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    await used(data)
    for path in [data, *data.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    for expected in (1, 0):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "busway.broker"):
            async with busway.serve(data=data):
                assert open_to_others(data) == []
        told = [one.message for one in caplog.records if "open to other users" in one.message]
        assert len(told) == expected, told


async def test_what_is_not_the_brokers_keeps_its_mode(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "home"
    (data / "photos").mkdir(parents=True)
    with caplog.at_level(logging.WARNING, "busway.broker"):
        await used(data)
    assert open_to_others(data) == [". 0777", "photos 0777"]
    assert "has mode 0777, which was not changed" in caplog.text


async def test_a_folder_of_another_user_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert os.geteuid() == 0, "only root can give a folder to another user"
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    os.chown(data, 65534, 65534)
    with caplog.at_level(logging.WARNING, "busway.broker"):
        async with busway.serve(data=data):
            assert stat.S_IMODE(data.stat().st_mode) == 0o755
    assert "belongs to user 65534" in caplog.text


async def test_a_named_sqlite_store_is_for_the_user_of_the_broker(tmp_path: Path) -> None:
    stores = {"archive": f"sqlite:///{tmp_path / 'made' / 'archive.db'}"}
    async with busway.serve(stores=stores) as server, server.connect() as bus:
        await bus.create_stream("s", ["s"], store="archive")
        await bus.publish("s", b"1", durable=True)
        assert open_to_others(tmp_path / "made") == []
