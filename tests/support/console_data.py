"""A broker with data for the console: streams, channels, dead letters, retained messages, services, and live messages."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import msgspec

import busway

ORDERS = 300
FAILING = 97
"""Orders with a number that this divides fail."""


def order(number):
    return json.dumps({"id": number, "customer": "Zoë <script>window.broken=1</script>", "total": number * 1.5})


@asynccontextmanager
async def busy(server):
    """Clients at work on a server, by their names. Their messages go on until the end."""
    async with AsyncExitStack() as stack:
        names = ("feed", "billing-1", "risk")
        clients = {name: await stack.enter_async_context(server.connect(name=name)) for name in names}
        feed, worker, risk = clients.values()
        worker._core.on_error = lambda *_: None  # handlers fail on purpose
        await feed.create_stream("orders", topics=["orders/**"], max_age="7d")
        await feed.create_stream("audit", topics=["audit/**"], max_count=1000)
        await feed.create_channel("orders", "billing", max_deliveries=1)
        await feed.create_channel("orders", "shipping")
        await feed.pin("config/limits", json.dumps({"max_order": 1000}))
        for number in range(1, ORDERS + 1):
            fields = {"country": "pl" if number % 2 else "de", "number": number}
            await feed.publish(f"orders/{'eu' if number % 3 else 'us'}", order(number), fields=fields, durable=True)
        await feed.publish("audit/login", msgspec.msgpack.encode({"user": "anna", "tries": 3}), durable=True)
        await feed.publish("audit/raw", b"\xff\xfe\x00\x01", durable=True)

        def bill(message):
            number = json.loads(message.payload)["id"]
            if number % FAILING == 0:
                raise ValueError(f"no price for order {number}")

        enter = stack.enter_async_context
        await enter(worker.channel("orders", "billing", handler=bill, window=16))
        await enter(worker.serve("pricing/quote", lambda message: {"asked": message.json(), "price": 42}, shared=True))
        await enter(risk.serve("pricing/quote", lambda message: {"asked": message.json(), "price": 42}, shared=True))
        await enter(risk.subscribe("price/**"))
        live = asyncio.create_task(_publish(feed))
        stack.callback(live.cancel)
        async with asyncio.timeout(20):
            while (await feed.channel_info("orders", "billing")).dead < ORDERS // FAILING:
                await asyncio.sleep(0.05)
        yield clients
        live.cancel()


async def _publish(feed):
    number = 0
    with suppress(busway.BusError):
        while True:
            for name in ("btc", "eth"):
                number += 1
                await feed.publish(
                    f"price/{name}/eur", json.dumps({"bid": number}), fields={"venue": "krk", "n": number}
                )
            await asyncio.sleep(0.05)
