"""Fields and rules: the examples of the mbus document, with defaults, all kinds of rules, extra and system fields."""

import busway


async def main():
    async with (
        busway.serve(fields={"region": "emea"}) as server,  # the server adds its fields to each message
        # Publishers; asset and proc are their default fields.
        server.connect(name="stock hdb", fields={"asset": "stock", "proc": "hdb"}) as stock,
        server.connect(name="fx hstat", fields={"asset": "fx", "proc": "hstat", "instance": 2}) as fx,
        server.connect(name="bonds rdb", fields={"asset": "bonds", "proc": "rdb"}) as bonds,
        server.connect(name="collector") as bus,
    ):
        here = {"event": "hdb.reload", "asset": busway.ANY}
        subscriptions = {
            # Collect reloads from all hdbs: a pattern, a function, a list. ANY: the field must exist, with any value.
            "pattern": bus.subscribe("event", where=here | {"proc": "h*"}),
            "function": bus.subscribe("event", where=here | {"proc": lambda proc: proc in ("hdb", "hstat")}),
            "list": bus.subscribe("event", where=here | {"proc": ["hdb", "hstat"]}),
            # Other fields are ignored, unless the subscriber limits them. A function gets the message and their names.
            "extra by name": bus.subscribe("event", where=here | {"proc": "h*"}, extra={"region"}),
            "extra by function": bus.subscribe(
                "event", where=here | {"proc": "h*"}, extra=lambda _, names: sorted(names) == ["instance", "region"]
            ),
            # The sender, the time and the payload are ignored, too, unless there is a rule for them.
            "sender": bus.subscribe("event", where={".id": "fx hstat"}),
            "payload": bus.subscribe("event", where={"msg": "17 *"}),
        }
        for subscription in subscriptions.values():
            await subscription

        for number, client in enumerate((stock, fx, bonds), 16):
            await client.send("event", f"{number} tables", fields={"event": "hdb.reload"})
            await client.flush()
        await bus.flush()

        for name, subscription in subscriptions.items():
            await subscription.close()
            print(f"{name}:", ", ".join([message.sender async for message in subscription]))

        try:
            await stock.send("event", fields={".ts": 0})
        except busway.InvalidFields as error:
            print("refused:", error)


busway.run(main())
