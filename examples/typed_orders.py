"""Typed messages from end to end: a channel of orders, a service with a pydantic request, and its caller."""

import asyncio

import pydantic

import busway


# The messages below the topic "orders": an immutable struct.
class OrderPlaced(busway.Protocol, prefix="orders"):
    number: int
    account: int
    amount: int


# A request and the reply to it; dataclasses work in the same way.
class Balance(pydantic.BaseModel):
    account: int
    amount: int


class GetBalance(pydantic.BaseModel, busway.WithReply[Balance]):
    account: pydantic.PositiveInt


busway.protocol(GetBalance, prefix="bank/balance")

ACCOUNTS = {1: 100, 2: 5}


async def balance(request: GetBalance) -> Balance:
    if request.account not in ACCOUNTS:
        raise busway.HandlerError("no such account", code="no_account", details={"account": request.account})
    return Balance(account=request.account, amount=ACCOUNTS[request.account])


async def bill(bus: busway.Bus, order: OrderPlaced) -> str:
    """Bill an order; reject one that can never be billed."""
    try:
        found = await bus.request("", GetBalance(account=order.account), timeout=5)
    except busway.HandlerError as error:
        if error.code == "no_account":
            raise busway.Reject(f"account {error.details['account']} is unknown") from None
        raise
    return "billed" if found.amount >= order.amount else f"has only {found.amount}"


async def main() -> None:
    async with busway.serve() as server, server.connect(name="shop") as bus:
        await bus.create_stream("orders", topics=["orders/**"])
        done = asyncio.Event()

        async def handle(delivered: busway.Delivered[OrderPlaced]) -> None:
            print(f"{delivered.topic} {delivered.value.number}:", await bill(bus, delivered.value))
            if delivered.value.number == 4:
                done.set()

        async with (
            bus.subscribe("dead/**") as dead,
            bus.serve(GetBalance, "", balance),
            bus.channel(OrderPlaced, "orders", "billing", handler=handle),
        ):
            await bus.publish("eu", OrderPlaced(number=1, account=1, amount=60), durable=True)
            await bus.publish("eu", OrderPlaced(number=2, account=2, amount=60), durable=True)
            await bus.publish("eu", OrderPlaced(number=3, account=9, amount=60), durable=True)
            # A program with an older or a broken version of the type sends this.
            await bus.publish("orders/us", {"number": 5, "account": 1, "amount": "many"}, durable=True)
            await bus.publish("us", OrderPlaced(number=4, account=1, amount=1), durable=True)
            await done.wait()
            for _ in range(2):
                letter = await dead.recv(timeout=5)
                print("dead:", letter.fields["dead_reason"])

        try:
            async with bus.serve(GetBalance, "", balance):
                await bus.request("bank/balance", {"account": -1}, reply=Balance)
        except busway.HandlerError as error:
            print("refused:", error.code, error.details["field"])


if __name__ == "__main__":
    busway.run(main())
