"""Kept messages on their way: from the frame into what is kept and onto the disk, to subscribers, and away again.

Drives `retained` and `pins` for one hub. A pin of a broker with a data folder is kept, delivered and answered once it is on
disk, and nothing of that happens if it can't get there. Its connection waits meanwhile, so what it sends stays in order.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from busway import _core
from busway.broker.flags import (
    CONFIRM,
    FIELDS,
    KEPT,
    NO_ECHO,
    PIN,
    POST,
    SINCE,
    UNKEEP,
    WAIT,
    WATCH,
    WITHDRAWN,
    scope_of,
)
from busway.broker.retained.pin_entries import Pin, Unpin
from busway.broker.retained.pin_file import PinFile
from busway.broker.retained.store import Key, RetainedMessage, RetainedStore, Version
from busway.errors import BusError, Code, LimitExceeded
from busway.settings import KiB

if TYPE_CHECKING:
    from busway.broker.hub import Hub
    from busway.broker.session import Session

log = logging.getLogger("busway.broker")

_SCOPE: Final = 6
"""Where its scope is."""
_BODY: Final = 16
"""Where the body of a PUBLISH begins."""
_PORTION: Final = 256 * KiB
"""Bytes of kept messages that are handed over at once."""


@dataclass(slots=True, eq=False)
class _Delivery:
    """A subscription that is being handed more than one portion of what is kept."""

    event: tuple[Any, ...]
    session: "Session | None"
    without: int
    after: int = 0
    """What was put later in the order is still to come."""
    selection: _core.Selection = field(init=False)

    def __post_init__(self) -> None:
        self.selection = _core.Selection(self.event[6], self.event[8])

    def saw(self, kept: RetainedMessage) -> bool:
        """Whether it has this one and wants to know when it is gone."""
        if not self.event[4] & WATCH or kept.order > self.after or kept.session == self.without:
            return False
        return self.selection.covers(kept.topic) and self.selection.matches(
            kept.topic, kept.shown_fields, kept.payload, kept.name, kept.session, kept.time
        )


class RetainedDriver:
    """What is kept by one hub."""

    def __init__(self, hub: "Hub", pins: PinFile | None, found: Iterable[Pin], fields: bytes) -> None:
        settings = hub.settings
        self.fields: dict[str, Any] = msgspec.msgpack.decode(fields) if fields else {}
        """Those that the broker adds to each message."""
        self._handing: dict[int, _Delivery] = {}
        self._hub = hub
        self._pins = pins
        self.box = RetainedStore(
            count=settings.kept, size=settings.kept_bytes, grace=settings.grace, compile=_core.Selection
        )
        clients: dict[tuple[int, str], int] = {}
        for pin in found:
            sender = pin.session, pin.name
            if sender not in clients:
                # Receivers tell senders apart by these numbers, so those of before the restart need some too.
                hub.clients += 1
                clients[sender] = hub.clients
            kept = pin.kept(clients[sender])
            kept.dress(self.fields)
            self.box.put(kept)

    # Subscriptions.

    def subscribe(self, event: tuple[Any, ...]) -> None:
        """Let a SUBSCRIBE through, with what is kept for it. Raises for a bad pattern or rule."""
        _, conn, _, _, flags, _, pattern, group, rules, since = event
        if flags & SINCE:
            self._hub.replays.check(since, group)
        session = self._hub.sessions.get(conn)
        without = session.session if session is not None and flags & NO_ECHO else 0
        handed = _within(flags, self.box.select(pattern, rules, without=without)) if self.box else []
        if sum(kept.size for kept in handed) > _PORTION:
            self._handing[conn] = _Delivery(event, session, without)
            self.room(conn)
        else:
            self._enter(event, handed)

    def _enter(self, event: tuple[Any, ...], handed: list[RetainedMessage]) -> None:
        _, conn, sub, number, flags, policy, pattern, group, rules, since = event
        kept = [_parts(one, KEPT) for one in handed] or None
        code = self._hub.engine.subscribe(conn, sub, number, flags, policy, pattern, group, rules, kept)
        if code == Code.OK and flags & WAIT:
            self._hub.answer_when_known(conn, number, len(handed))
        if code == Code.OK and flags & SINCE:
            self._hub.replays.begin(conn, sub, pattern, rules, since)

    def room(self, conn: int) -> None:
        """Little waits for a connection that is being handed what is kept: a portion more, and at the end the subscription.

        Its SUBSCRIBE holds the connection up meanwhile, so nothing live of it can come before. What was put or changed since
        the last portion stands behind it in the order, so it is handed over too.
        """
        driver = self._handing.get(conn)
        if driver is None or self._hub.sessions.get(conn) is not driver.session:
            self._handing.pop(conn, None)
            return
        sub, pattern, rules = driver.event[2], driver.event[6], driver.event[8]
        left = self.box.select(pattern, rules, without=driver.without, after=driver.after)
        left = _within(driver.event[4], left)
        room, portion = _PORTION, list[RetainedMessage]()
        for kept in left:
            if portion and room < kept.size:
                break
            room -= kept.size
            portion.append(kept)
        if len(portion) == len(left):
            del self._handing[conn]
            self._enter(driver.event, portion)
            return
        for kept in portion:
            self._hub.engine.hand(conn, [sub], _parts(kept, KEPT))
        driver.after = portion[-1].order
        self._hub.engine.want_room(conn)

    # Messages to be kept.

    def keep(self, event: tuple[Any, ...]) -> None:
        """A PUBLISH with POST or PIN: keep it, or take back what is kept under its key."""
        _, conn, number, flags, topic, _, _, _, frame = event
        session, engine = self._hub.sessions.get(conn), self._hub.engine
        if session is None:
            return
        if frame[_SCOPE] & 3:
            engine.refuse(conn, number, Code.INVALID_SETTING, "a kept message is for everybody, so it takes no scope")
            return
        kind = flags & (POST | PIN | FIELDS)
        message = RetainedMessage(session.client, session.session, session.name, kind, topic, frame[_BODY:])
        message.dress(self.fields)
        if self.fields and (fault := self._unfit(message)) is not None:
            engine.refuse(conn, number, fault.code, fault.reason)
            return
        pins = self._pins if flags & PIN else None
        if self._is_late(message):
            if self._hub.nodes is not None and flags & POST and not flags & UNKEEP:
                self._hub.nodes.kept(message)  # it is gone here when this session is
            self._done(conn, number, flags, 0)
        elif flags & UNKEEP:
            # Of a pin that this node has not heard of another one may know, and tell it when it is linked.
            there = message.key in self.box or self._hub.nodes is not None
            if there and pins is not None:
                done = partial(self._stored, session, conn, number, flags, message)
                pins.store(self._unpin(message.key, message.version), done)
            else:
                self._take_back(conn, number, flags, message)
        elif self.box.same(message):
            old = self.box.get(message.key)
            if self._hub.nodes is not None and flags & POST and old is not None:
                self._hub.nodes.kept(old)
            self._done(conn, number, flags, 0)
        elif reason := self.box.refusal(message):
            engine.refuse(conn, number, Code.TOO_MANY_KEPT, reason)
        elif pins is not None:
            self._follow(message)
            pins.store(Pin.of(message), partial(self._stored, session, conn, number, flags, message))
        else:
            self._keep(conn, number, flags, message)

    def _stored(
        self, session: "Session", conn: int, number: int, flags: int, message: RetainedMessage, error: OSError | None
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
                self._keep(conn if here else None, number, flags, message)
        except Exception as unexpected:  # noqa: BLE001, logged and counted there
            hub.unexpected(unexpected, session if here else None, "keeping a pin")
        hub.flush()

    def _is_late(self, message: RetainedMessage) -> bool:
        """Whether its client has kept something later elsewhere under its key, or has taken that back there."""
        since = self._taken_back(message)
        return self.box.is_late(message) or (
            since is not None and since[1] == message.session and since[2] > message.number
        )

    def _taken_back(self, message: RetainedMessage) -> Version | None:
        nodes = self._hub.nodes
        return nodes.taken_back(message.key) if nodes is not None and message.flags & PIN else None

    def _follow(self, message: RetainedMessage) -> None:
        """Of two pins the later counts everywhere. This one is, whatever the clocks of the two senders say."""
        if message.flags & PIN:
            if (old := self.box.get(message.key)) is not None:
                message.follow(old.version)
            if (since := self._taken_back(message)) is not None:
                message.follow(since)

    def _keep(self, conn: int | None, number: int, flags: int, message: RetainedMessage) -> None:
        self._follow(message)
        self.box.put(message)
        # Other nodes hear of it when its groups are known, and before anything that its client sends later.
        receivers, groups = self._hub.engine.publish(_parts(message, 0))
        message.served = tuple(groups)
        if self._hub.nodes is not None:
            self._hub.nodes.kept(message)
        if conn is not None:
            self._done(conn, number, flags, receivers)

    def _take_back(self, conn: int | None, number: int, flags: int, message: RetainedMessage) -> None:
        gone = self.box.take(message.key)
        if gone is not None:
            self._tell([gone], message)
        elif flags & PIN and self._hub.nodes is not None:
            self._hub.nodes.unkept([message], message)
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
        self._tell(self.box.left(session, self._elsewhere))

    def lost(self, session: int, now: float) -> None:
        """A client went without a word, and may come back."""
        self._tell(self.box.lost(session, now, self._elsewhere))

    def forget(self, conn: int) -> None:
        self._handing.pop(conn, None)

    def expire(self, now: float) -> None:
        self._tell(self.box.expire(now, self._elsewhere))

    def deadline(self) -> float | None:
        return self.box.deadline()

    def _elsewhere(self, key: Key) -> bool:
        return self._hub.nodes is not None and self._hub.nodes.elsewhere(key)

    def figures(self) -> dict[str, Any]:
        """For `$bus/info`."""
        box = self.box
        return {
            "posts": box.posts,
            "pins": len(box) - box.posts,
            "bytes": box.bytes,
            "withdrawn": box.withdrawn,
            "watchers": self._hub.engine.stats()["watchers"],
            "store": None if self._pins is None else self._pins.figures(),
        }

    # What other nodes keep.

    def put_far(self, message: RetainedMessage) -> None:
        """Another node keeps it: that is how the clients of this one get it, once, however they and it came here."""
        message.far = True
        self.box.put(message)
        _, groups = self._hub.engine.publish(_parts(message, 0), list(message.served))
        message.served += tuple(groups)
        if message.flags & PIN and self._pins is not None:
            self._pins.store(Pin.of(message), _written)

    def take_far(self, key: Key) -> None:
        """Another node keeps it no longer."""
        if (gone := self.box.take(key)) is not None:
            self._withdraw([gone])

    def mark_far(self, key: Key, version: Version) -> None:
        """Another node knows of a pin that it was taken back, whether it is here or not."""
        if self._pins is not None:
            self._pins.store(self._unpin(key, version), _written)

    def _unpin(self, key: Key, version: Version) -> Unpin:
        """What is written of a pin that was taken back; alone, a broker needs not remember it."""
        name, topic, fields = key
        old = self.box.get(key)
        since = version if old is None else max(version, old.version)
        return Unpin(str(name), topic, fields, since if self._hub.nodes is not None else (0, 0, 0))

    @property
    def marks(self) -> dict[Key, Version]:
        """Pins that were taken back before the broker was started, and since when."""
        return {} if self._pins is None else self._pins.marks

    def _tell(self, gone: list[RetainedMessage], by: RetainedMessage | None = None) -> None:
        """Some are kept no longer, taken back by a message or because their client is gone."""
        if gone and self._hub.nodes is not None:
            self._hub.nodes.unkept(gone, by)
        self._withdraw(gone)

    def _withdraw(self, gone: list[RetainedMessage]) -> None:
        """Tell those who watch here."""
        for kept in gone:
            self._hub.engine.withdraw(_parts(kept, 0), kept.far)
            for conn, driver in self._handing.items():
                if driver.saw(kept):
                    self._hub.engine.hand(conn, [driver.event[2]], _parts(kept, WITHDRAWN))

    def _unfit(self, message: RetainedMessage) -> BusError | None:
        """Why it can't be shown with the server's fields, if it can't."""
        size, most = len(message.shown_fields), self._hub.settings.fields
        if size > most:
            text = f"fields of {size} bytes with those of the server, the limit is {most}"
            return LimitExceeded(text, code=Code.FIELDS_TOO_LARGE)
        try:
            _core.check_fields(message.shown_fields)
        except BusError as error:
            return error
        return None


def _within(flags: int, kept: list[RetainedMessage]) -> list[RetainedMessage]:
    """Those that a SUBSCRIBE with such flags wants by its scope, which is two bits above that of a SERVE."""
    scope = scope_of(flags >> 2)
    return kept if scope == "global" else [one for one in kept if one.far is (scope == "remote")]


def _written(error: OSError | None) -> None:
    if error is not None:
        log.warning("a pin of another node can't be written: %s", error.strerror or error)


def _parts(kept: RetainedMessage, mark: int) -> tuple[int, int, str, int, str, bytes]:
    return kept.client, kept.session, kept.name, kept.shown_flags | mark, kept.topic, kept.shown


# What the hub's table calls.


def keep(hub: "Hub", event: tuple[Any, ...]) -> None:
    hub.retained.keep(event)
