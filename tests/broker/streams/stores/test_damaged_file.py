"""A stream whose database file has other content: the broker reports it and runs without the stream."""

import logging

import pytest

import busway


async def stored(folder):
    async with busway.serve(data=folder) as server, server.connect() as bus:
        await bus.create_stream("bills", topics=["bills/**"], store="db")
        await bus.create_stream("other", topics=["other/**"], store="db")
        for number in range(200):
            await bus.publish("bills/1", b"%d" % number * 100, durable=True)
        await bus.publish("other/1", b"safe", durable=True)
    file = folder / "streams" / "bills" / "stream.sqlite"
    for more in ("-wal", "-shm"):
        file.with_name(file.name + more).unlink(missing_ok=True)
    return file


def garbage(file):
    file.write_bytes(b"no database at all " * 1000)


def torn(file):
    """The first page is as it was, nothing else."""
    size = file.stat().st_size
    with file.open("r+b") as it:
        it.seek(4096)
        it.write(b"\xff" * (size - 4096))


@pytest.mark.parametrize("ruin", [garbage, torn])
async def test_the_broker_goes_on_without_it(tmp_path, caplog, ruin):
    file = await stored(tmp_path)
    ruin(file)
    before = file.read_bytes()
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        assert [one.name for one in await bus.streams()] == ["default", "other"]
        async with bus.subscribe("other/**", since="all") as others:
            assert (await others.recv(timeout=60)).payload == b"safe"
        with pytest.raises(busway.BusError, match="mend or remove it"):
            await bus.create_stream("bills", topics=["bills/**"], store="db")
        assert (await bus.publish("bills/1", b"x", durable=True)).stream == "default"
    (told,) = [one for one in caplog.records if "runs without it" in one.getMessage()]
    assert told.levelno == logging.ERROR
    assert "'bills' can't be opened" in told.getMessage()
    assert file.read_bytes() == before, "whoever mends it finds it as it was"


async def test_one_that_somebody_else_has_open_still_stops_it(tmp_path):
    """That is no damage, and is over soon."""
    folder = tmp_path / "one"
    stores = {"shared": f"sqlite:///{tmp_path / 'shared.sqlite'}"}
    async with busway.serve(stores=stores) as other, other.connect() as bus:
        async with busway.serve(data=folder, stores=stores) as server, server.connect() as mine:
            await mine.create_stream("bills", topics=["bills/**"], store="shared")
        await bus.create_stream("bills", topics=["bills/**"], store="shared")
        with pytest.raises(busway.DataFailed, match="bills"):
            await busway.serve(data=folder, stores=stores).start()
