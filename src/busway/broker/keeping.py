"""Kept messages on their way: from the frame into what is kept and onto the disk, to subscribers, and away again.

Drives `retained` and `pins` for one hub. A pin of a broker with a data folder is kept, delivered and answered once it is on
disk, and nothing of that happens if it can't get there. Its connection waits meanwhile, so what it sends stays in order.
"""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from busway import _core
from busway.broker.flags import CONFIRM, FIELDS, KEPT, NO_ECHO, PIN, POST, SINCE, UNKEEP, WATCH, WITHDRAWN
from busway.broker.pinlog import Pin, Unpin
from busway.broker.pins import Pins
from busway.broker.retained import Kept, Retained
from busway.errors import Code

if TYPE_CHECKING:
    from busway.broker.hub import Hub
    from busway.broker.session import Session

_BODY: Final = 16
"""Where the body of a PUBLISH begins."""


class Keeping:
    """What is kept by one hub."""

    def __init__(self, hub: "Hub", pins: Pins | None, found: Iterable[Pin]) -> None:
        settings = hub.settings
        self._hub = hub
        self._pins = pins
        self.box = Retained(
            count=settings.kept, size=settings.kept_bytes, grace=settings.grace, compile=_core.Selection
        )
        clients: dict[tuple[int, str], int] = {}
        for pin in found:
            sender = pin.session, pin.name
            if sender not in clients:
                # Receivers tell senders apart by these numbers, so those of before the restart need some too.
                hub.clients += 1
                clients[sender] = hub.clients
            self.box.put(pin.kept(clients[sender]))

    # Subscriptions.

    def subscribe(self, event: tuple[Any, ...]) -> None:
        """Let a SUBSCRIBE through, with what is kept for it. Raises for a bad pattern or rule."""
        _, conn, sub, number, flags, policy, pattern, group, rules, since = event
        box, engine = self.box, self._hub.engine
        if flags & SINCE:
            self._hub.replaying.check(since)
        session = self._hub.sessions.get(conn)
        without = session.session if session is not None and flags & NO_ECHO else 0
        handed = None
        if box:
            handed = [_parts(kept, KEPT) for kept in box.select(pattern, rules, without=without)]
        if engine.subscribe(conn, sub, number, flags, policy, pattern, group, rules, handed) != Code.OK:
            return
        if flags & SINCE:
            self._hub.replaying.begin(conn, sub, pattern, rules, since)
        if flags & WATCH:
            box.watch(conn, sub, pattern, rules, without=without)
        else:
            box.unwatch(conn, sub)  # an earlier one with this id

    # Messages to be kept.

    def keep(self, event: tuple[Any, ...]) -> None:
        """A PUBLISH with POST or PIN: keep it, or take back what is kept under its key."""
        _, conn, number, flags, topic, _, _, _, frame = event
        session, engine = self._hub.sessions.get(conn), self._hub.engine
        if session is None:
            return
        kind = flags & (POST | PIN | FIELDS)
        message = Kept(session.client, session.session, session.name, kind, topic, frame[_BODY:])
        pins = self._pins if flags & PIN else None
        if flags & UNKEEP:
            there = message.key in self.box
            if there and pins is not None:
                name, topic, fields = message.key
                pins.store(
                    Unpin(str(name), topic, fields), partial(self._stored, session, conn, number, flags, message, b"")
                )
            else:
                self._take_back(conn, number, flags, message)
        elif self.box.same(message):
            self._done(conn, number, flags, 0)
        elif reason := self.box.refusal(message):
            engine.refuse(conn, number, Code.TOO_MANY_KEPT, reason)
        elif pins is not None:
            pins.store(Pin.of(message), partial(self._stored, session, conn, number, flags, message, frame))
        else:
            self._keep(conn, number, flags, message, frame)

    def _stored(
        self,
        session: "Session",
        conn: int,
        number: int,
        flags: int,
        message: Kept,
        frame: bytes,
        error: OSError | None,
    ) -> None:
        """The disk has it, or says that it can't. The connection may be gone meanwhile, and its number be somebody else's."""
        hub = self._hub
        here = hub.sessions.get(conn) is session
        try:
            if error is not None:
                if here:
                    text = f"the broker can't write its pins: {error.strerror or error}"
                    hub.engine.refuse(conn, number, Code.STORE_FAILED, text)
            elif flags & UNKEEP:
                self._take_back(conn if here else None, number, flags, message)
            else:
                message.told = here
                self._keep(conn if here else None, number, flags, message, frame)
        except Exception as unexpected:  # noqa: BLE001, logged and counted there
            hub.unexpected(unexpected, session if here else None, "keeping a pin")
        hub.flush()

    def _keep(self, conn: int | None, number: int, flags: int, message: Kept, frame: bytes) -> None:
        self.box.put(message)
        if conn is not None:
            self._done(conn, number, flags, self._hub.engine.publish(conn, message.topic, frame))

    def _take_back(self, conn: int | None, number: int, flags: int, message: Kept) -> None:
        gone = self.box.take(message.key)
        if gone is not None:
            self._tell([gone])
        if conn is not None:
            self._done(conn, number, flags, int(gone is not None))

    def _done(self, conn: int, number: int, flags: int, value: int) -> None:
        if flags & CONFIRM:
            self._hub.engine.result(conn, number, Code.OK, value, "")
        self._hub.engine.settle(conn)

    # The lives of sessions.

    def returned(self, session: int) -> None:
        self.box.returned(session)

    def left(self, session: int) -> None:
        """A client said that it goes."""
        self._tell(self.box.left(session))

    def lost(self, session: int, now: float) -> None:
        """A client went without a word, and may come back."""
        self._tell(self.box.lost(session, now))

    def forget(self, conn: int) -> None:
        self.box.forget(conn)

    def expire(self, now: float) -> None:
        self._tell(self.box.expire(now))

    def deadline(self) -> float | None:
        return self.box.deadline()

    def figures(self) -> dict[str, Any]:
        """For `$bus/info`."""
        box = self.box
        return {
            "posts": box.posts,
            "pins": len(box) - box.posts,
            "bytes": box.bytes,
            "withdrawn": box.withdrawn,
            "watchers": box.watchers,
            "store": None if self._pins is None else self._pins.figures(),
        }

    def _tell(self, gone: list[Kept]) -> None:
        """Tell those who watch."""
        for kept in gone:
            message = _parts(kept, WITHDRAWN)
            for conn, subs in self.box.watching(kept).items():
                self._hub.engine.hand(conn, subs, message)


def _parts(kept: Kept, mark: int) -> tuple[int, int, str, int, str, bytes]:
    return kept.client, kept.session, kept.name, kept.flags | mark, kept.topic, kept.body


# What the hub's table calls.


def keep(hub: "Hub", event: tuple[Any, ...]) -> None:
    hub.keeping.keep(event)
