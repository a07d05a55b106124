"""Flow control of one client: sends HOLD frames for its full subscriptions while their consumers work.

The core calls it. The broker delays the publishers of a held subscription as long as HOLD frames arrive. So publishers
wait for a consumer that takes messages, however slowly. They do not wait for a consumer that took none within its
patience, nor for a process that is stopped.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from weakref import ref

if TYPE_CHECKING:
    from busway._core import Session
    from busway.client.connection.registration import Receiver

REPEAT: Final = 0.1
"""Seconds between two HOLD frames of a subscription; well below the stall time of a broker."""


class _Hold:
    """One full subscription, and when its consumer last took a message."""

    def __init__(self, subscription: "Receiver", now: float) -> None:
        self._subscription = ref(subscription)  # a subscription that the program drops must end
        self.taken = subscription.taken
        self.since = now

    def is_active(self, now: float, *, stopped: bool) -> bool:
        """Whether its consumer takes messages, or may be blocked because this client's publishes are `stopped`."""
        if (subscription := self._subscription()) is None:
            return False
        if (taken := subscription.taken) != self.taken or stopped:
            self.taken = taken
            self.since = now
        return now - self.since < subscription.patience

    def relieved(self) -> bool:
        """Whether the subscription has room again. Updates `taken` if so."""
        if (subscription := self._subscription()) is None or subscription.full:
            return False
        self.taken = subscription.taken
        return True

    def renew(self) -> int:
        """Update and return the number of messages taken so far."""
        if (subscription := self._subscription()) is not None:
            self.taken = subscription.taken
        return self.taken


class FlowControl:
    """The full subscriptions of one client. `stopped` returns whether the broker accepts no publishes now."""

    def __init__(self, session: "Session", stopped: Callable[[], bool]) -> None:
        self._session = session
        self._stopped = stopped
        self._holds: dict[int, _Hold] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._holds)

    def begin(self, number: int, subscription: "Receiver") -> None:
        """Hold a subscription that is full."""
        self._holds[number] = _Hold(subscription, asyncio.get_running_loop().time())
        self._session.hold(number, True, subscription.taken)
        self._arm()

    def relieve(self) -> None:
        """Release the subscriptions that have room again. Called after messages were taken."""
        for number, hold in list(self._holds.items()):
            if hold.relieved():
                del self._holds[number]
                self._session.hold(number, False, hold.taken)

    def forget(self, number: int) -> None:
        """Remove a subscription that has ended."""
        self._holds.pop(number, None)

    def renew(self, number: int) -> None:
        """Tell the broker of a new connection that this restored subscription is full."""
        if (hold := self._holds.get(number)) is not None:
            self._session.hold(number, True, hold.renew())

    def stop(self) -> None:
        """End flow control without further frames."""
        self._holds.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is None and self._holds:
            self._timer = asyncio.get_running_loop().call_later(REPEAT, self._repeat)

    def _repeat(self) -> None:
        self._timer = None
        stopped = self._stopped()
        now = asyncio.get_running_loop().time()
        for number, hold in self._holds.items():
            if hold.is_active(now, stopped=stopped):
                self._session.hold(number, True, hold.taken)
        self._arm()
