"""The journal with keys: the last entry of each key is there after a restart, whatever the disk does meanwhile."""

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from busway import DataFailed
from busway.broker.storage import keyed_journal
from busway.broker.storage.keyed_journal import KeyedJournal
from tests.support.net import until, within
from tests.support.strength import examples

MAGIC = b"\xc1BWX"


class Entry(msgspec.Struct, array_like=True, frozen=True):
    key: str
    value: str = ""
    """Empty: it is removed."""


def journal(folder: Path, *, retry: bool = False) -> KeyedJournal[str, Entry]:
    return KeyedJournal(
        folder / "x.log", MAGIC, Entry, lambda entry: entry.key, keeps=lambda entry: bool(entry.value), retry=retry
    )


async def content(folder: Path) -> list[Entry]:
    again = journal(folder)
    found = await within(again.start())
    await within(again.stop())
    return found


Change = st.tuples(
    st.sampled_from(["store", "store", "store", "forget", "restart", "written"]),
    st.sampled_from("abc"),
    st.sampled_from(["", "x", "y" * 50, MAGIC.decode("latin-1") * 3]),
)


@given(st.lists(Change, max_size=30))
@settings(max_examples=examples(200), deadline=None)
def test_it_is_like_a_dict(tmp_path_factory, changes) -> None:
    folder, model = tmp_path_factory.mktemp("journal"), {}

    async def play() -> None:
        file = journal(folder)
        await file.start()
        for what, key, value in changes:
            match what:
                case "store":
                    file.store(Entry(key, value))
                    model.pop(key, None)
                    if value:
                        model[key] = Entry(key, value)
                case "forget" if key in model:
                    file.store(Entry(key))
                    file.forget(key)
                    del model[key]
                case "restart":
                    await file.stop()
                    file = journal(folder)
                    assert await file.start() == list(model.values())
                case "written":
                    await file.written()
                    assert file.figures()["records"] == len(model)
        await file.stop()

    asyncio.run(play())
    assert journal(folder).load() == list(model.values())


async def test_what_comes_while_the_thread_writes_is_written_at_once(tmp_path, monkeypatch) -> None:
    file = journal(tmp_path)
    await file.start()
    append, batches, threads, go_on = file.append, [], set(), threading.Event()

    def slowly(batch):
        batches.append(sum(bool(waiting.record) for waiting in batch))
        threads.add(threading.current_thread())
        assert go_on.wait(60)
        return append(batch)

    monkeypatch.setattr(file, "append", slowly)
    entries = [Entry(str(number), "x") for number in range(100)]
    for entry in entries:
        file.store(entry)
    waiting = asyncio.create_task(file.written())
    await asyncio.sleep(0)
    assert not waiting.done()
    go_on.set()
    await within(waiting)
    assert batches == [1, 99]
    assert threading.current_thread() not in threads
    await file.stop()
    assert await content(tmp_path) == entries
    assert (tmp_path / "x.log").stat().st_mode & 0o777 == 0o600


async def test_a_file_that_is_mostly_history_is_written_anew(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(keyed_journal, "WORTH", 100)
    file = journal(tmp_path)
    file._next_check = 100
    await file.start()
    for number in range(100):
        file.store(Entry(str(number % 3), str(number)))
        await file.written()
    assert 5 < file.rewritten < 50
    await file.stop()
    assert await content(tmp_path) == [Entry("1", "97"), Entry("2", "98"), Entry("0", "99")]


async def test_what_is_forgotten_is_left_out_when_the_file_is_written_anew(tmp_path) -> None:
    file = journal(tmp_path)
    await file.start()
    file.store(Entry("a", "x"))
    file.store(Entry("b", "x"))
    file.forget("a")
    await file.written()
    file.rewrite()
    await file.stop()
    assert await content(tmp_path) == [Entry("b", "x")]


async def test_an_entry_of_an_earlier_form_is_written_anew_at_the_start(tmp_path) -> None:
    file = journal(tmp_path)
    old = keyed_journal.record_format.frame(msgspec.msgpack.encode(["a", "x", "more"]), MAGIC)
    (tmp_path / "x.log").write_bytes(old)
    assert await content(tmp_path) == [Entry("a", "x")]
    assert (tmp_path / "x.log").read_bytes() == file.encode(Entry("a", "x"))


async def test_what_could_not_be_written_is_written_later(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(keyed_journal, "AGAIN", (0.001, 0.001))
    file = journal(tmp_path, retry=True)
    await file.start()
    add, full, tries = file._add, True, []

    def fails(records):
        tries.append(records)
        if full:
            raise OSError(28, "No space left on device")
        add(records)

    monkeypatch.setattr(file, "_add", fails)
    results: list[OSError | None] = []
    for key in "abc":
        file.store(Entry(key, "x"), results.append)
    await within(file.written())  # who waits is not held up by a disk
    await until(lambda: len(tries) > 3)
    file.store(Entry("a", "later"))
    await until(lambda: b"later" in tries[-1])
    full = False
    await until(lambda: file.figures()["records"] == 3)
    await until(lambda: "again" in caplog.text)
    file.store(Entry("d", "x"))
    await file.stop()
    assert [result and result.errno for result in results] == [28, 28, 28]
    assert await content(tmp_path) == [Entry("b", "x"), Entry("c", "x"), Entry("a", "later"), Entry("d", "x")]
    said = [one.getMessage() for one in caplog.records if "x.log" in one.getMessage()]
    assert [("can't" in text, "again" in text) for text in said] == [(True, False), (False, True)]


@pytest.mark.parametrize("well", [True, False])
async def test_a_stop_tries_once_more(tmp_path, monkeypatch, well) -> None:
    monkeypatch.setattr(keyed_journal, "AGAIN", (3600.0, 3600.0))
    file = journal(tmp_path, retry=True)
    await file.start()
    real = file._add

    def broken(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(file, "_add", broken)
    file.store(Entry("a", "x"))
    await within(file.written())
    if well:
        monkeypatch.setattr(file, "_add", real)
    await within(file.stop())
    assert await content(tmp_path) == ([Entry("a", "x")] if well else [])


async def test_a_file_that_could_not_be_read_is_replaced(tmp_path, monkeypatch) -> None:
    first = journal(tmp_path)
    await first.start()
    for key in "abc":
        first.store(Entry(key, "old" * 9))
    await first.stop()
    file = journal(tmp_path, retry=True)

    def broken(_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", broken)
        with pytest.raises(DataFailed, match=r"x\.log can't be read"):
            file.load()
    file.store(Entry("a", "new"))
    file.store(Entry("b", "new"))
    await within(file.stop())
    assert await content(tmp_path) == [Entry("a", "new"), Entry("b", "new")]


async def test_a_mistake_in_the_journal_is_a_failed_write(tmp_path, monkeypatch, caplog) -> None:
    file = journal(tmp_path)
    await file.start()

    def wrong(_):
        raise RuntimeError("oops")

    results: list[OSError | None] = []
    with monkeypatch.context() as patch:
        patch.setattr(file, "append", wrong)
        file.store(Entry("a", "x"), results.append)
        await within(file.written())
    file.store(Entry("b", "x"), results.append)
    await within(file.stop())
    assert "oops" in str(results[0])
    assert results[1] is None
    assert "unexpected error in the file" in caplog.text
    assert await content(tmp_path) == [Entry("b", "x")]


async def test_a_killed_journal_writes_nothing_more(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(keyed_journal, "AGAIN", (0.001, 0.001))
    file = journal(tmp_path, retry=True)
    await file.start()
    tries = []

    def broken(*how):
        tries.append(how)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(file, "_add", broken)
    file.store(Entry("a", "x"))
    await until(lambda: len(tries) > 2)
    await until(lambda: file._writing is None)
    file.kill()
    count = len(tries)
    await asyncio.sleep(0.05)
    assert len(tries) == count
