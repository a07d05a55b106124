"""The driver of retained messages: stores them, delivers them to subscribers, and withdraws them when they are removed.

It connects `store` and the journal of pins with one broker, which calls it. A broker with a data folder retains, delivers and
answers a pin only once it is on disk. The engine holds the connection until then, so that its frames stay in order.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from busway import _core
from busway.authority.grants import NUMBERS
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
from busway.broker.retained.pin_file import Entry, Pin, PinJournal, Unpin
from busway.broker.retained.store import Key, RetainedMessage, RetainedStore, Version
from busway.errors import BusError, Code, LimitExceeded
from busway.settings import KiB

if TYPE_CHECKING:
    from busway.broker.peers import Members, RetainedPeers
    from busway.broker.runtime import Runtime
    from busway.broker.session import Session
    from busway.broker.streams.replay import Replays

log = logging.getLogger("busway.broker")

_SCOPE: Final = 6
"""The index of the scope byte in a PUBLISH frame."""
_BODY: Final = 16
"""The index at which the body of a PUBLISH frame begins."""
_PORTION: Final = 256 * KiB
"""The most bytes of retained messages that a new subscription gets at once."""


@dataclass(slots=True, eq=False)
class _Delivery:
    """A new subscription that gets its retained messages in several portions."""

    event: tuple[Any, ...]
    session: "Session | None"
    without: int
    after: int = 0
    """The order of the last delivered message."""
    selection: _core.Selection = field(init=False)

    def __post_init__(self) -> None:
        guard = _guard(self.session, self.event[6])
        self.selection = _core.Selection(self.event[6], self.event[8], guard, NUMBERS["subscribe"])

    def saw(self, message: RetainedMessage) -> bool:
        """Whether the subscription has got this message and watches removals."""
        if not self.event[4] & WATCH or message.order > self.after or message.session == self.without:
            return False
        return self.selection.covers(message.topic) and self.selection.matches(
            message.topic, message.shown_fields, message.payload, message.name, message.session, message.time
        )


def _guard(session: "Session | None", pattern: str) -> _core.Grants | None:
    """The grants that decide for each message of a subscription: an expression can't be decided as a whole."""
    return session.grants if session is not None and pattern.startswith("re:") else None


class RetainedDriver:
    """The retained messages of one broker."""

    def __init__(
        self,
        runtime: "Runtime",
        pins: PinJournal | None,
        found: Iterable[Entry],
        fields: bytes,
        peers: "RetainedPeers",
        members: "Members",
        replays: "Replays",
    ) -> None:
        self._peers = peers
        self._members = members
        self._replays = replays
        settings = runtime.settings
        self.fields: dict[str, Any] = msgspec.msgpack.decode(fields) if fields else {}
        """The fields that the broker adds to each message."""
        self._deliveries: dict[int, _Delivery] = {}
        """Subscriptions that still get portions, by connection."""
        self._runtime = runtime
        self._pins = pins
        self.box = RetainedStore(
            count=settings.kept, size=settings.kept_bytes, grace=settings.grace, compile=_core.Selection
        )
        clients: dict[tuple[int, str], int] = {}
        self.marks: dict[Key, Version] = {}
        """Pins that were removed before the broker was started, with the version of the removal."""
        for pin in found:
            if isinstance(pin, Unpin):
                self.marks[pin.key] = pin.version
                continue
            sender = pin.session, pin.name
            if sender not in clients:
                # Receivers distinguish senders by these numbers, so senders from before the restart need some too.
                runtime.clients += 1
                clients[sender] = runtime.clients
            message = pin.message(clients[sender])
            message.dress(self.fields)
            self.box.put(message)

    # Subscriptions.

    def subscribe(self, event: tuple[Any, ...]) -> None:
        """Enter a SUBSCRIBE into the engine, with its retained messages. Raises for a bad pattern or rule."""
        _, conn, _, _, flags, _, pattern, group, rules, since = event
        if flags & SINCE:
            self._replays.check(since, group)
        session = self._runtime.sessions.get(conn)
        without = session.session if session is not None and flags & NO_ECHO else 0
        grants = _guard(session, pattern)
        found = _within(flags, self.box.select(pattern, rules, without=without, grants=grants)) if self.box else []
        if sum(message.size for message in found) > _PORTION:
            self._deliveries[conn] = _Delivery(event, session, without)
            self.room(conn)
        else:
            self._enter(event, found)

    def _enter(self, event: tuple[Any, ...], found: list[RetainedMessage]) -> None:
        _, conn, sub, number, flags, policy, pattern, group, rules, since = event
        retained = [_parts(message, KEPT) for message in found] or None
        code = self._runtime.engine.subscribe(conn, sub, number, flags, policy, pattern, group, rules, retained)
        if code == Code.OK and flags & WAIT:
            self._runtime.answer_when(self._members.when_known, conn, number, len(found))
        if code == Code.OK and flags & SINCE:
            self._replays.begin(conn, sub, pattern, rules, since)

    def room(self, conn: int) -> None:
        """Deliver the next portion to a connection with room, and enter the subscription after the last one.

        The engine holds the connection until then, so no live message comes first. Messages that were put or replaced
        since the last portion come later in the order, so the subscription gets them too.
        """
        delivery = self._deliveries.get(conn)
        if delivery is None or self._runtime.sessions.get(conn) is not delivery.session:
            self._deliveries.pop(conn, None)
            return
        sub, pattern, rules = delivery.event[2], delivery.event[6], delivery.event[8]
        grants = _guard(delivery.session, pattern)
        left = self.box.select(pattern, rules, without=delivery.without, after=delivery.after, grants=grants)
        left = _within(delivery.event[4], left)
        room, portion = _PORTION, list[RetainedMessage]()
        for message in left:
            if portion and room < message.size:
                break
            room -= message.size
            portion.append(message)
        if len(portion) == len(left):
            del self._deliveries[conn]
            self._enter(delivery.event, portion)
            return
        for message in portion:
            self._runtime.engine.deliver_retained(conn, [sub], _parts(message, KEPT))
        delivery.after = portion[-1].order
        self._runtime.engine.want_room(conn)

    # Posts and pins of clients.

    def keep(self, event: tuple[Any, ...]) -> None:
        """Handle a PUBLISH with POST or PIN: retain the message, or remove the one with its key."""
        _, conn, number, flags, topic, _, _, _, frame = event
        session, engine = self._runtime.sessions.get(conn), self._runtime.engine
        if session is None:
            return
        if frame[_SCOPE] & 3:
            text = "a retained message is for all nodes, so it takes no scope; leave the scope out"
            engine.refuse(conn, number, Code.INVALID_SETTING, text)
            return
        kind = flags & (POST | PIN | FIELDS)
        message = RetainedMessage(session.client, session.session, session.name, kind, topic, frame[_BODY:])
        message.dress(self.fields)
        if self.fields and (fault := self._unfit(message)) is not None:
            engine.refuse(conn, number, fault.code, fault.reason)
            return
        pins = self._pins if flags & PIN else None
        if self._is_late(message):
            if flags & POST and not flags & UNKEEP:
                self._peers.added(message)  # this node removes it when this session ends
            self._done(conn, number, flags, 0)
        elif flags & UNKEEP:
            # Another node may have a pin that this node does not know yet.
            known = message.key in self.box or self._members.clustered
            if known and pins is not None:
                done = partial(self._stored, session, conn, number, flags, message)
                pins.store(self._unpin(message.key, message.version), done)
            else:
                self._remove(conn, number, flags, message)
        elif self.box.same(message):
            old = self.box.get(message.key)
            if flags & POST and old is not None:
                self._peers.added(old)
            self._done(conn, number, flags, 0)
        elif reason := self.box.refusal(message):
            engine.refuse(conn, number, Code.TOO_MANY_KEPT, reason)
        elif pins is not None:
            self._follow(message)
            pins.store(Pin.of(message), partial(self._stored, session, conn, number, flags, message))
        else:
            self._retain(conn, number, flags, message)

    def _stored(
        self, session: "Session", conn: int, number: int, flags: int, message: RetainedMessage, error: OSError | None
    ) -> None:
        """Continue after a write to the file of pins. By now another connection may have the number."""
        runtime = self._runtime
        here = runtime.sessions.get(conn) is session
        try:
            if error is not None:
                if here:
                    text = f"the broker can't write the pin to its disk: {error.strerror or error}"
                    runtime.engine.refuse(conn, number, Code.STORE_FAILED, text)
            elif flags & UNKEEP:
                self._remove(conn if here else None, number, flags, message)
            else:
                self._retain(conn if here else None, number, flags, message)
        except Exception as unexpected:  # noqa: BLE001, logged and counted by unexpected()
            runtime.unexpected(unexpected, session if here else None, "storing a pin")
        runtime.flush()

    def _is_late(self, message: RetainedMessage) -> bool:
        """Whether the client has put or removed a later message under this key at another node already."""
        since = self._removed_since(message)
        return self.box.is_late(message) or (
            since is not None and since[1] == message.session and since[2] > message.number
        )

    def _removed_since(self, message: RetainedMessage) -> Version | None:
        return self._peers.removed_since(message.key) if message.flags & PIN else None

    def _follow(self, message: RetainedMessage) -> None:
        """Make a pin later than the one that it replaces, whatever the clocks of the two senders show."""
        if message.flags & PIN:
            if (old := self.box.get(message.key)) is not None:
                message.follow(old.version)
            if (since := self._removed_since(message)) is not None:
                message.follow(since)

    def _retain(self, conn: int | None, number: int, flags: int, message: RetainedMessage) -> None:
        self._follow(message)
        self.box.put(message)
        # The other nodes get it after its groups are known, and before later messages of its client.
        receivers, groups = self._runtime.engine.publish(_parts(message, 0))
        message.served = tuple(groups)
        self._peers.added(message)
        if conn is not None:
            self._done(conn, number, flags, receivers)

    def _remove(self, conn: int | None, number: int, flags: int, message: RetainedMessage) -> None:
        gone = self.box.take(message.key)
        if gone is not None:
            self._removed([gone], message)
        elif flags & PIN:
            self._peers.removed([message], message)
        if conn is not None:
            self._done(conn, number, flags, int(gone is not None))

    def _done(self, conn: int, number: int, flags: int, value: int) -> None:
        if flags & CONFIRM:
            self._runtime.engine.result(conn, number, Code.OK, value, "")
        self._runtime.engine.unblock(conn)

    # Sessions.

    def returned(self, session: int) -> None:
        self.box.returned(session)

    def left(self, session: int) -> None:
        """A client has closed its connection."""
        self._removed(self.box.left(session, self._at_another_node))

    def lost(self, session: int, now: float) -> None:
        """A client has lost its connection, and may come back."""
        self._removed(self.box.lost(session, now, self._at_another_node))

    def forget(self, conn: int) -> None:
        self._deliveries.pop(conn, None)

    def expire(self, now: float) -> None:
        self._removed(self.box.expire(now, self._at_another_node))

    def deadline(self) -> float | None:
        return self.box.deadline()

    def _at_another_node(self, key: Key) -> bool:
        return self._peers.at_another_node(key)

    def figures(self) -> dict[str, Any]:
        """The figures for `$bus/info`."""
        box = self.box
        return {
            "posts": box.posts,
            "pins": len(box) - box.posts,
            "bytes": box.bytes,
            "withdrawn": box.withdrawn,
            "watchers": self._runtime.engine.stats()["watchers"],
            "store": None if self._pins is None else self._pins.figures(),
        }

    # Retained messages of other nodes.

    def put_remote(self, message: RetainedMessage) -> None:
        """Retain a message of another node, and deliver it to the clients of this one."""
        message.remote = True
        self.box.put(message)
        _, groups = self._runtime.engine.publish(_parts(message, 0), list(message.served))
        message.served += tuple(groups)
        if message.flags & PIN and self._pins is not None:
            self._pins.store(Pin.of(message), _written)

    def remove_remote(self, key: Key) -> None:
        """Remove a message that another node has removed."""
        if (gone := self.box.take(key)) is not None:
            self._withdraw([gone])

    def mark_removed(self, key: Key, version: Version) -> None:
        """Record that a pin was removed at another node, whether this node has it or not."""
        if self._pins is not None:
            self._pins.store(self._unpin(key, version), _written)

    def _unpin(self, key: Key, version: Version) -> Unpin:
        """The entry for a removed pin. It has a version only in a cluster; a single broker need not record it."""
        name, topic, fields = key
        old = self.box.get(key)
        since = version if old is None else max(version, old.version)
        return Unpin(str(name), topic, fields, since if self._members.clustered else (0, 0, 0))

    def forget_removed(self, key: Key) -> None:
        """The removal of a pin need not stay recorded."""
        if self._pins is not None:
            self._pins.forget(key)

    def _removed(self, gone: list[RetainedMessage], by: RetainedMessage | None = None) -> None:
        """Report removed messages to the other nodes and to watchers. `by`: the message that removed them, if any."""
        if gone:
            self._peers.removed(gone, by)
        self._withdraw(gone)

    def _withdraw(self, gone: list[RetainedMessage]) -> None:
        """Report removed messages to the watchers on this node."""
        for message in gone:
            self._runtime.engine.withdraw(_parts(message, 0), message.remote)
            for conn, delivery in self._deliveries.items():
                if delivery.saw(message):
                    self._runtime.engine.deliver_retained(conn, [delivery.event[2]], _parts(message, WITHDRAWN))

    def _unfit(self, message: RetainedMessage) -> BusError | None:
        """Why the message can't have the server's fields, or None."""
        size, most = len(message.shown_fields), self._runtime.settings.fields
        if size > most:
            text = f"the fields have {size} bytes with those of the server, the limit is {most}; shorten them"
            return LimitExceeded(text, code=Code.FIELDS_TOO_LARGE)
        try:
            _core.check_fields(message.shown_fields)
        except BusError as error:
            return error
        return None


def _within(flags: int, messages: list[RetainedMessage]) -> list[RetainedMessage]:
    """The messages in the scope of a SUBSCRIBE with these flags. Its scope is two bits above that of a SERVE."""
    scope = scope_of(flags >> 2)
    return messages if scope == "global" else [message for message in messages if message.remote is (scope == "remote")]


def _written(error: OSError | None) -> None:
    if error is not None:
        log.warning(
            "a pin of another node can't be written, and is missing here after a restart until that node is linked: %s",
            error.strerror or error,
        )


def _parts(message: RetainedMessage, mark: int) -> tuple[int, int, str, int, str, bytes]:
    return message.client, message.session, message.name, message.shown_flags | mark, message.topic, message.shown
