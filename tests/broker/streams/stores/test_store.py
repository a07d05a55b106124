"""The guarantees of every store, tested on each kind."""

import asyncio

import pytest

from busway.broker.streams.stores import ChannelEntry, Parked, Published, Store, TopicUsage, Trimmed, Usage
from busway.errors import Closed, StoreFailed
from tests.support.store_kits import DAY, NOON, DatabaseKit, Writer, everything

HUGE = 2**64 - 1
SIZE = 80 + len("orders/newtillpayload")


async def test_an_empty_store_has_nothing(store: Store) -> None:
    assert (store.name, store.first, store.next, store.stored) == ("orders", 0, 0, 0)
    assert await store.read(0, 1000) == []
    assert await store.find_time(NOON) == 0
    assert await store.find("orders/new", 1) is None
    assert await store.topics() == []
    assert await store.sequences() == {}
    assert await store.publishers(0) == []
    assert await store.waiting() == []
    assert await store.usage() == Usage(0, 0)
    assert await store.load_channels() == []
    assert await store.trim(NOON, max_age=1, max_bytes=1, max_count=1) == Trimmed(0, 0)
    assert await store.purge() == Trimmed(0, 0)


async def test_a_record_comes_back_as_it_was(store: Store) -> None:
    writer = Writer()
    writer.make(topic="", sender="", payload=b"")
    writer.make(topic="größe/東京", sender="an\0odd näme", fields=b"", payload=bytes(range(256)))
    writer.make(session=HUGE, number=HUGE, expires=NOON + DAY, due=NOON + 1, fields=b"\x81\xa1a\x01")
    writer.make(session=1 << 63, number=(1 << 63) - 1, payload=b"x" * 3_000_000)
    writer.make(topic="a" * 1024, session=0, number=0, sender="s" * 255)
    await store.append(writer.records)
    assert (store.first, store.next, store.stored) == (0, 5, NOON + 4)
    assert await store.read(0, 10**9) == writer.records
    assert await store.usage() == Usage(sum(record.size for record in writer.records), 5)


async def test_reading_stops_before_it_is_too_much_but_gives_one(store: Store) -> None:
    writer = Writer()
    writer.make(50)
    writer.make(2, payload=b"x" * 10_000)
    writer.make(50)
    await store.append(writer.records)
    size = writer.records[0].size
    assert await store.read(0, 3 * size) == writer.records[:3]
    assert await store.read(0, 4 * size - 1) == writer.records[:3]
    assert await store.read(10, 1) == [writer.records[10]]
    assert await store.read(50, 5000) == [writer.records[50]]
    assert await store.read(49, 10_000) == [writer.records[49]]
    assert await everything(store, most_bytes=700) == writer.records
    assert await everything(store, from_=60) == writer.records[60:]
    assert await store.read(102, 1000) == []
    assert await store.read(5000, 1000) == []


async def test_what_is_stored_again_is_stored_once(store: Store) -> None:
    writer = Writer()
    first = writer.make(10)
    await store.append(first)
    await store.append(first)
    await store.append(first[3:7])
    more = writer.make(5)
    await store.append(first[8:] + more)
    assert await everything(store) == writer.records
    assert await store.usage() == Usage(sum(record.size for record in writer.records), 15)
    assert await store.topics() == [TopicUsage("orders/new", 1, 15, 15)]


async def test_another_record_in_the_place_of_one_is_refused(store: Store) -> None:
    writer = Writer()
    await store.append(writer.make(3))
    for other in (
        writer.records[1]._replace(number=99),
        writer.records[1]._replace(session=99),
        writer.records[1]._replace(topic="orders/old"),
        writer.records[1]._replace(sequence=1),
    ):
        with pytest.raises(StoreFailed, match="offset 1 has another message"):
            await store.append([other])
    assert await everything(store) == writer.records


async def test_an_append_is_all_or_nothing(store: Store) -> None:
    writer = Writer()
    await store.append(writer.make(3))
    good = Writer(3).make(4, "orders/old")
    with pytest.raises(StoreFailed, match=r"offset 6, but 5 is the next one"):
        await store.append([good[0], good[1], good[3]])
    with pytest.raises(StoreFailed, match=r"offset 4, but 3 is the next one"):
        await store.append(good[1:])
    with pytest.raises(StoreFailed, match="'orders/old' has sequence 2 already, so 2 is refused"):
        await store.append([good[0], good[1], good[2]._replace(sequence=2)])
    assert store.next == 3
    assert await everything(store) == writer.records
    assert await store.sequences() == {"orders/new": 3}
    await store.append(good)
    assert await everything(store) == writer.records + good


async def test_an_empty_store_may_begin_anywhere(store: Store) -> None:
    writer = Writer(1000)
    writer.sequences["orders/new"] = 70
    await store.append(writer.make(3))
    assert (store.first, store.next) == (1000, 1003)
    assert await everything(store) == writer.records
    assert await store.topics() == [TopicUsage("orders/new", 71, 73, 3)]
    assert await store.find("orders/new", 72) == 1001


async def test_nothing_to_append_is_no_error(store: Store) -> None:
    await store.append([])
    assert store.next == 0


async def test_records_are_found_by_time(store: Store) -> None:
    writer = Writer()
    for second in (1, 1, 1, 4, 4, 9):
        writer.make(stored=NOON + second)
    await store.append(writer.records)
    found = [await store.find_time(NOON + second) for second in range(11)]
    assert found == [0, 0, 3, 3, 3, 5, 5, 5, 5, 5, 6]
    assert await store.find_time(0) == 0
    assert await store.find_time(2**62) == 6


async def test_a_clock_set_back_is_held(store: Store) -> None:
    writer = Writer()
    await store.append([*writer.make(stored=NOON), *writer.make(stored=NOON - DAY), *writer.make(stored=NOON + 2)])
    await store.append(writer.make(stored=NOON - DAY))
    assert [record.stored - NOON for record in await everything(store)] == [0, 0, 2, 2]
    assert await store.find_time(NOON + 1) == 2
    assert store.stored == NOON + 2
    await store.append(writer.records)  # recognised though its time was changed
    assert store.next == 4
    await store.trim(NOON + DAY, max_count=0)
    assert store.stored == NOON + 2
    await store.append(writer.make(stored=NOON))
    assert [record.stored - NOON for record in await everything(store)] == [2]


async def test_records_are_found_by_sequence(store: Store) -> None:
    writer = Writer()
    for _ in range(20):
        writer.make(topic="a")
        writer.make(2, topic="b/c")
    await store.append(writer.records)
    for record in writer.records:
        assert await store.find(record.topic, record.sequence) == record.offset
    assert await store.find("a", 0) is None
    assert await store.find("a", 21) is None
    assert await store.find("c", 1) is None
    assert await store.topics() == [TopicUsage("a", 1, 20, 20), TopicUsage("b/c", 1, 40, 40)]


async def test_publishers_are_told_as_runs(store: Store) -> None:
    writer = Writer()
    writer.make(3, session=HUGE)
    writer.make(2, session=0)
    writer.make(2, session=HUGE)  # a gap in the numbers
    writer.make(2, session=5, number=1)  # the same number twice is no run
    for number in (4, 5):
        writer.make(topic="a", session=5, number=number)
        writer.make(topic="b", session=6, number=number)
    await store.append(writer.records)
    runs = [
        Published(HUGE, 0, 0, 1, 3),
        Published(HUGE, 5, 5, 6, 2),
        Published(5, 1, 7, 8, 1),
        Published(5, 1, 8, 9, 1),
        Published(5, 4, 9, 1, 1),
        Published(6, 4, 10, 1, 1),
        Published(5, 5, 11, 2, 1),
        Published(6, 5, 12, 2, 1),
    ]
    assert await store.publishers(0) == runs
    assert await store.publishers(NOON + 6) == [Published(HUGE, 6, 6, 7, 1), *runs[2:]]
    assert await store.publishers(NOON + 13) == []


async def test_many_publishers_are_told_whole(store: Store) -> None:
    writer = Writer()
    await store.append(writer.make(20_000, payload=b""))
    assert await store.publishers(0) == [Published(7, 0, 0, 1, 20_000)]


async def test_what_waits_is_told_in_order_of_time_until_it_is_stored_once_more(store: Store) -> None:
    writer = Writer()
    for due in (0, NOON + 9, NOON + 3, 0, NOON + 3, NOON + 1):
        writer.make(due=due, waits=due > 0, session=HUGE, number=HUGE - due)
    await store.append(writer.records)
    parked = [
        Parked(NOON + more, offset, HUGE, HUGE - NOON - more) for more, offset in ((1, 5), (3, 2), (3, 4), (9, 1))
    ]
    assert await store.waiting() == parked
    assert await store.topics() == [TopicUsage("orders/new", 1, 2, 2)]
    sent = await store.publishers(0)
    await store.append(writer.make(due=NOON + 1, session=HUGE, number=HUGE - NOON - 1))
    assert await store.waiting() == parked[1:]
    assert await store.publishers(0) == sent, "it was sent once"
    assert await everything(store) == [
        record._replace(due=0) if record.offset == 5 else record for record in writer.records
    ]
    await store.trim(NOON, max_count=4)
    assert (await store.waiting(), await store.topics()) == (
        [one for one in parked[1:] if one.offset >= store.first],
        [TopicUsage("orders/new", 2 if store.first else 1, 3, 2 if store.first else 3)],
    )


@pytest.mark.parametrize(
    ("limits", "first"),
    [
        ({}, 0),
        ({"max_count": 100}, 0),
        ({"max_count": 30}, 70),
        ({"max_count": 0}, 100),
        ({"max_age": 1000}, 0),
        ({"max_age": 40}, 60),
        ({"max_age": 0}, 100),
        ({"max_bytes": 10**9}, 0),
        ({"max_bytes": SIZE * 20}, 80),
        ({"max_bytes": SIZE * 20 - 1}, 81),
        ({"max_bytes": 0}, 100),
        ({"max_count": 30, "max_age": 20, "max_bytes": SIZE * 50}, 80),
        ({"max_count": 30, "hold": 12}, 12),
        ({"max_count": 30, "hold": 90}, 70),
        ({"max_count": 30, "hold": 0}, 0),
    ],
)
async def test_the_oldest_go_beyond_a_limit(store: Store, limits: dict[str, int], first: int) -> None:
    writer = Writer()
    await store.append(writer.make(100))
    assert writer.records[0].size == SIZE
    trimmed = await store.trim(NOON + 100, **limits)
    held = 70 - first if "hold" in limits else 0
    assert trimmed == Trimmed(store.first, store.first, held, held * SIZE)
    assert store.first == first
    assert store.next == 100
    left = writer.records[store.first :]
    assert await everything(store) == left
    assert await store.usage() == Usage(sum(record.size for record in left), len(left))


async def test_topics_and_sequences_survive_their_records(store: Store) -> None:
    writer = Writer()
    writer.make(5, "a")
    writer.make(2, "b")
    writer.make(3, "a")
    await store.append(writer.records)
    await store.trim(NOON, max_count=4)
    assert await store.topics() == [TopicUsage("a", 6, 8, 3), TopicUsage("b", 2, 2, 1)]
    assert await store.find("a", 5) is None
    assert await store.find("a", 6) == 7
    await store.trim(NOON, max_count=2)
    assert await store.topics() == [TopicUsage("a", 7, 8, 2)]
    assert await store.sequences() == {"a": 8, "b": 2}
    await store.append(writer.make(1, "b"))
    assert await store.topics() == [TopicUsage("a", 7, 8, 2), TopicUsage("b", 3, 3, 1)]


async def test_long_trims_remove_all(store: Store) -> None:
    writer = Writer()
    for _ in range(10):
        await store.append(writer.make(2000, payload=b""))
    trimmed = await store.trim(NOON, max_count=100)
    assert trimmed == Trimmed(19_900, 19_900)
    assert await everything(store, most_bytes=1 << 20) == writer.records[store.first :]


async def test_a_purge_removes_the_records_and_nothing_else(store: Store) -> None:
    writer = Writer()
    await store.append(writer.make(30))
    await store.save_channels([ChannelEntry("billing", "floor", b"\x05")])
    assert await store.purge() == Trimmed(30, 30)
    assert (store.first, store.next) == (30, 30)
    assert await store.read(0, 1000) == []
    assert await store.usage() == Usage(0, 0)
    assert await store.topics() == []
    assert await store.sequences() == {"orders/new": 30}
    assert await store.load_channels() == [ChannelEntry("billing", "floor", b"\x05")]
    more = writer.make(2)
    await store.append(more)
    assert await everything(store) == more
    assert more[0].sequence == 31


async def test_channels_keep_the_last_of_each_key(store: Store) -> None:
    await store.save_channels(
        [
            ChannelEntry("billing", "floor", b"\x01"),
            ChannelEntry("audit", "floor", b"\x02"),
            ChannelEntry("billing", "", b""),
            ChannelEntry("billing", "floor", b"\x03"),
        ]
    )
    wanted = [
        ChannelEntry("audit", "floor", b"\x02"),
        ChannelEntry("billing", "", b""),
        ChannelEntry("billing", "floor", b"\x03"),
    ]
    assert await store.load_channels() == wanted
    await store.save_channels(
        [
            ChannelEntry("audit", "floor", None),
            ChannelEntry("billing", "floor", None),
            ChannelEntry("billing", "floor", bytes(range(256))),
            ChannelEntry("nobody", "floor", None),
        ]
    )
    assert await store.load_channels() == [wanted[1], ChannelEntry("billing", "floor", bytes(range(256)))]
    await store.save_channels([])


async def test_everything_is_there_after_opening_again(kit: DatabaseKit, store: Store) -> None:
    writer = Writer()
    writer.make(5, "a", due=NOON + 5, waits=True)
    writer.make(70, "b")
    await store.append(writer.records)
    await store.save_channels([ChannelEntry("billing", "floor", b"\x05")])
    await store.trim(NOON, max_count=20)
    before = [
        *(store.first, store.next, store.stored, await everything(store), await store.topics()),
        *(await store.sequences(), await store.publishers(0), await store.waiting(), await store.usage()),
    ]
    store = await kit.reopen(store)
    assert before == [
        *(store.first, store.next, store.stored, await everything(store), await store.topics()),
        *(await store.sequences(), await store.publishers(0), await store.waiting(), await store.usage()),
    ]
    assert await store.load_channels() == [ChannelEntry("billing", "floor", b"\x05")]
    await store.append(writer.make(3, "a"))
    assert await everything(store) == writer.records[store.first :]


async def test_a_removed_stream_begins_anew(kit: DatabaseKit, store: Store) -> None:
    await store.append(Writer().make(3))
    await store.save_channels([ChannelEntry("billing", "floor", b"\x05")])
    await store.remove()
    with pytest.raises(Closed):
        await store.read(0, 1000)
    again = await kit.open()
    assert (again.first, again.next, await again.sequences()) == (0, 0, {})
    assert await again.load_channels() == []
    await again.append(Writer().make(2))
    assert len(await everything(again)) == 2


async def test_a_closed_store_says_so(store: Store) -> None:
    await store.append(Writer().make(3))
    await store.close()
    await store.close()
    for call in (
        store.append(Writer(3).make()),
        store.read(0, 1000),
        store.usage(),
        store.trim(NOON, max_count=1),
        store.save_channels([ChannelEntry("a", "b", b"")]),
        store.remove(),
    ):
        with pytest.raises(Closed, match="'orders' is closed"):
            await call


async def test_appends_that_overlap_are_done_in_order(store: Store) -> None:
    writer = Writer()
    batches = [writer.make(20) for _ in range(30)]
    reading = asyncio.gather(*(store.read(0, 10**6) for _ in range(5)))
    await asyncio.gather(*(store.append(batch) for batch in batches))
    assert await everything(store) == writer.records
    for found in await reading:
        assert found == writer.records[: len(found)]


async def test_a_cancelled_append_goes_on(store: Store) -> None:
    writer = Writer()
    task = asyncio.ensure_future(store.append(writer.make(500)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.append(writer.make(1))
    assert await everything(store) == writer.records
