"""A process that appends to a store until it is killed: `python -m tests.support.store_process URL WHERE`.

It prints `next` after each append that was acknowledged. WHERE "inside": from the fourth append on it prints "inside" when the
rows are written and not committed, and stays there.
"""

import asyncio
import sys
import threading

from busway.broker.streams.stores import ChannelEntry
from busway.broker.streams.stores.connection import Database
from busway.broker.streams.stores.database import DatabaseStore
from tests.support.store_kits import Writer


def say(what: object) -> None:
    print(what, flush=True)


async def main(url: str, where: str) -> None:
    database = Database(url)
    await database.open()
    store = DatabaseStore(database, "orders")
    await store.open()
    writer = Writer(store.next)
    writer.sequences = await store.sequences()
    if where == "inside":
        insert = database._dialect.insert

        def stays(*arguments: object) -> None:
            insert(*arguments)  # type: ignore[arg-type]
            if writer.next > 9:
                say("inside")
                threading.Event().wait()

        database._dialect.insert = stays  # type: ignore[method-assign, assignment]
    size = 0
    while True:
        size = size % 50 + 3
        await store.append(writer.make(size, f"orders/{size % 4}", session=size))
        await store.save_channels([ChannelEntry("billing", "next", b"%d" % store.next)])
        say(store.next)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
