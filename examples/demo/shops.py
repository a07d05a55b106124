"""Publishes payments of card terminals in six countries; in one of them the bank is out of order for a while."""

import argparse
import random
import time
from itertools import count

from busway import sync

COUNTRIES = {"at": 0.10, "de": 0.30, "es": 0.18, "fr": 0.22, "it": 0.14, "pl": 0.06}
"""Countries and their shares of all payments."""
DECLINED, BROKEN = 0.03, 0.55
"""Shares of payments that the bank refuses, usually and when it is out of order."""
STEP = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rate", type=float, default=2000, help="payments a second")
    parser.add_argument("--outage", default="pl", help="the country whose bank breaks in the middle")
    given = parser.parse_args()
    chance = random.Random(7)  # noqa: S311 - no secret
    with sync.connect(given.url, name="terminals") as bus:
        begun = time.monotonic()
        numbers = count(1)
        while (at := time.monotonic() - begun) < given.seconds:
            broken = given.seconds / 3 < at < given.seconds * 2 / 3
            for country, share in COUNTRIES.items():
                refused = BROKEN if broken and country == given.outage else DECLINED
                amount = int(given.rate * STEP * share * chance.uniform(0.7, 1.3)) + 1
                payments = [
                    {
                        "id": next(numbers),
                        "amount": round(chance.lognormvariate(3, 1), 2),
                        "ok": chance.random() > refused,
                    }
                    for _ in range(amount)
                ]
                shop = chance.randrange(1, 40)
                bus.publish_many(f"payments/{country}/{shop}", payments, durable=True)
            time.sleep(max(0.0, begun + at + STEP - time.monotonic()))


if __name__ == "__main__":
    main()
