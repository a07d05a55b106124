"""Which subscriptions are full, and the word of it to the broker: HOLD, as long as the consumer works, and its end.

The broker holds up publishers to a held subscription for as long as it hears of it. So a consumer that takes messages,
however slowly, is waited for; one that takes none for its patience is not, and neither is a process that stands still.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from weakref import ref

if TYPE_CHECKING:
    from busway._core import Session
    from busway.client.subscriptions.inbox import InboxReader

REPEAT: Final = 0.1
"""Seconds between two words; well below the stall time of a broker."""


class _Hold:
    """One full subscription, and when its consumer was last seen to take something."""

    def __init__(self, subscription: "InboxReader", now: float) -> None:
        self._subscription = ref(subscription)  # one that the program drops must end
        self.taken = subscription.taken
        self.since = now

    def works(self, now: float, *, stopped: bool) -> bool:
        """Whether its consumer takes messages, or may be unable to since its own publishes have to wait."""
        if (subscription := self._subscription()) is None:
            return False
        if (taken := subscription.taken) != self.taken or stopped:
            self.taken = taken
            self.since = now
        return now - self.since < subscription.patience

    def relieved(self) -> bool:
        """Whether it has room again; then `taken` is up to date."""
        if (subscription := self._subscription()) is None or subscription.full:
            return False
        self.taken = subscription.taken
        return True

    def renew(self) -> int:
        """How many messages were taken by now."""
        if (subscription := self._subscription()) is not None:
            self.taken = subscription.taken
        return self.taken


class FlowControl:
    """The full subscriptions of one client."""

    def __init__(self, session: "Session", stopped: Callable[[], bool]) -> None:
        self._session = session
        self._stopped = stopped
        self._holds: dict[int, _Hold] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._holds)

    def begin(self, number: int, subscription: "InboxReader") -> None:
        """This subscription has no room."""
        self._holds[number] = _Hold(subscription, asyncio.get_running_loop().time())
        self._session.hold(number, True, subscription.taken)
        self._arm()

    def relieve(self) -> None:
        """Messages were taken: tell of those that have room again."""
        for number, hold in list(self._holds.items()):
            if hold.relieved():
                del self._holds[number]
                self._session.hold(number, False, hold.taken)

    def forget(self, number: int) -> None:
        """This subscription is over."""
        self._holds.pop(number, None)

    def renew(self, number: int) -> None:
        """A new connection knows the subscription now, but not that it is full."""
        if (hold := self._holds.get(number)) is not None:
            self._session.hold(number, True, hold.renew())

    def stop(self) -> None:
        self._holds.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is None and self._holds:
            self._timer = asyncio.get_running_loop().call_later(REPEAT, self._again)

    def _again(self) -> None:
        self._timer = None
        stopped = self._stopped()
        now = asyncio.get_running_loop().time()
        for number, hold in self._holds.items():
            if hold.works(now, stopped=stopped):
                self._session.hold(number, True, hold.taken)
        self._arm()
