"""Guesses: how long an attempt to log in has to wait, by the failures of its address and of its user. A machine.

The broker asks it before it answers. A delay holds for right proofs, too, so it reveals nothing. It is short for a user,
so that somebody who guesses can't lock the user out.
"""

from collections import OrderedDict
from typing import Final

FREE: Final = 3
"""Failures without a delay."""
FIRST: Final = 0.1
"""Seconds of the first delay. Each further failure doubles it."""
ADDRESS: Final = 3.0
"""Longest delay of an address."""
USER: Final = 1.0
"""Longest delay of a user."""
FORGOTTEN: Final = 300.0
"""Seconds after the last failure when all of them are forgotten."""
MOST: Final = 65_536
"""Addresses and users that are remembered."""


class Guesses:
    """Failed logins by address and by user."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._failures: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        """The number of failures, and the time of the last one. The oldest come first."""
        self._turns: dict[str, float] = {}
        """When the last attempt of an address is decided. Attempts at the same time wait for each other."""

    def __len__(self) -> int:
        return len(self._failures)

    def delay(self, address: str, user: str, now: float) -> float:
        """Seconds that an attempt has to wait."""
        wait = self._delay(("address", address), ADDRESS, now)
        if wait:
            self._turns[address] = turn = max(self._turns.get(address, now), now) + wait
            wait = turn - now
        return max(wait, self._delay(("user", user), USER, now))

    def failed(self, address: str, user: str, now: float) -> None:
        """Count a failed attempt."""
        for key in (("address", address), ("user", user)):
            count = self._count(key, now)
            self._failures[key] = count + 1, now
            self._failures.move_to_end(key)
        while len(self._failures) > self._most:
            (kind, name), _ = self._failures.popitem(last=False)
            if kind == "address":
                self._turns.pop(name, None)

    def passed(self, address: str, user: str) -> None:
        """Forget the failures of a user and an address that has logged in."""
        self._failures.pop(("user", user), None)
        self._failures.pop(("address", address), None)
        self._turns.pop(address, None)

    def _delay(self, key: tuple[str, str], most: float, now: float) -> float:
        count = self._count(key, now)
        return 0.0 if count < FREE else min(FIRST * 2.0 ** min(count - FREE, 30), most)

    def _count(self, key: tuple[str, str], now: float) -> int:
        count, last = self._failures.get(key, (0, now))
        return count if key[1] and now - last < FORGOTTEN else 0
