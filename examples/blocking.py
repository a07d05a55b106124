"""The blocking API: the same names without asyncio, for scripts, threads and notebooks."""

import busway.sync


def main():
    with busway.sync.serve() as server, server.connect() as bus:
        with bus.subscribe("price/*/eur") as prices:
            bus.publish("price/eth/eur", "3012.5")
            bus.publish_many("price/btc/eur", ["61000", "61001"])
            for _, message in zip(range(3), prices, strict=False):
                print(message.topic, message.text)

        # Handlers run in threads, so they may block.
        with bus.serve("sum", lambda message: sum(message.json())):
            print("sum:", bus.request("sum", [1, 2, 3], timeout=5).json())


main()
