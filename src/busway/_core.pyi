"""The native engine (crates/): frames, topics, routing, outboxes and the client's codec."""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import datetime, timedelta
from os import PathLike
from typing import Any, Literal, Self, TypeAlias, final, overload
from weakref import ref

from typing_extensions import Buffer, disjoint_base

from busway.fields import Fields
from busway.positions import Position
from busway.settings import Offline, Scope

__version__: str
PROTOCOL: int
"""Highest protocol version spoken."""
ERRORS: dict[str, tuple[int, bool]]
"""Name -> (code, connection survives)."""

# Events are tuples whose first item is one of these. HELLO, SUBSCRIBE and SERVE hold up their connection until accept(),
# subscribe(), serve() or refuse() answers them; if it had sent more, that answer makes an EVENT_RESUME (out of flush()).
EVENT_HELLO: int  # broker: (HELLO, conn, version, map_bytes)
EVENT_SUBSCRIBE: int  # broker: (SUBSCRIBE, conn, sub, number, flags, policy, pattern, group, rules, since)
EVENT_SERVE: int  # broker: (SERVE, conn, service, number, topic, flags)
EVENT_CALL: int  # broker, internal service: (CALL, conn, call, message); client: (CALL, service, call, message)
EVENT_CLOSE: int  # broker: (CLOSE, conn, code, text); client: (CLOSE, code, text)
EVENT_FAIL: int  # broker: (FAIL, conn, code, text): the peer broke the rules; CLOSE is queued, close after flushing
EVENT_PAUSE: int  # broker: (PAUSE, conn): stop reading from it until EVENT_RESUME
EVENT_RESUME: int  # broker: (RESUME, conn): call engine.resume(conn) and read again
EVENT_UNSERVE: int  # broker: (UNSERVE, conn, service, topic): a shared service was given up
EVENT_KEEP: (
    int  # broker: (KEEP, conn, number, flags, topic, time, fields, payload, frame); held up until settle() or refuse()
)
EVENT_REQUEST: int  # broker: (REQUEST, conn, number, flags, topic, each_ms, limit_ms, frame): to a shared service; conn may be a link
EVENT_CANCEL: int  # broker: (CANCEL, conn, number): who asked a shared service no longer waits
EVENT_ACCEPT: int  # broker: (ACCEPT, conn, call, code): the answer to ask()
EVENT_ANSWER: int  # broker: (ANSWER, conn, call, flags, code, fields, payload): the reply to call()
EVENT_ASK: (
    int  # client: (ASK, service, call, message); broker, of a link: (ASK, conn, number, topic, frame), see willing()
)
EVENT_BEHIND: (
    int  # broker: (BEHIND, conn, sub, stream, offset): a subscription that misses nothing has no room from here on
)
EVENT_LATER: int  # broker: (LATER, stream, due, offset): a message that is to be delivered later is safe
EVENT_ROOM: int  # broker: (ROOM, conn): little waits for a connection that is behind, or for which want_room() asked
EVENT_CHANNEL: int  # broker: (CHANNEL, conn, kind, id, number, rest): a frame about a channel
EVENT_STORED: int  # broker: (STORED, stream): more is safe; client: (STORED, number, count, (broker, stream), offset, sequence, again)
EVENT_OWN: int  # broker: (OWN, ticket, code, text): what became of a message of store()
EVENT_NODE: int  # broker: (NODE, conn, type, number, body): what another node says besides messages
EVENT_SYNCED: int  # broker: (SYNCED, conn): a link has told all that its clients want
EVENT_CONFLICT: int  # broker: (CONFLICT, conn, topic): it is served here and behind that link, and not to be shared
EVENT_PROVIDER: int  # broker: (PROVIDER, conn, service, topic, flags): a link has somebody who shares in a service
EVENT_ENDED: int  # client: (ENDED, id, code, text): a channel is gone
EVENT_GAP: int  # client: (GAP, sub, (broker, stream), begin, end)
EVENT_UNSUBSCRIBE: int  # broker: (UNSUBSCRIBE, conn, sub): one that misses nothing of streams has ended
EVENT_DOUBT: int  # client: (DOUBT, sub): some of what it knew to be kept was not handed over again; settle() it later
EVENT_READ: int  # broker: (READ, conn): read again, only its publishes wait
EVENT_WAIT: int  # broker: (WAIT, conn): what it publishes is set aside until somebody slow has room: tick
EVENT_FLOW: int  # client: (FLOW, stop): publish no more for now, or again
EVENT_YIELD: int  # broker: (YIELD, conn): stop reading from it, let others have a turn, then as EVENT_RESUME
EVENT_WELCOME: int  # client: (WELCOME, version, map_bytes); broker, of dial(): (WELCOME, conn, version, map_bytes)
EVENT_READY: int  # client: (READY, sub): the inbox of sub was empty and has messages now
EVENT_RESULT: int  # client: (RESULT, number, code, value, text)
EVENT_REPLY: (
    int  # client: (REPLY, number, code, flags, message): code 0 = answer, else error with text in message.payload
)
EVENT_FULL: int  # client: (FULL, sub): the inbox of sub reached its limit
EVENT_MISSED: int  # client: (MISSED, sub, count)
EVENT_PONG: int  # client: (PONG, token); broker, of a link: (PONG, conn, token)
EVENT_AWAY: int  # client: (AWAY,)
EVENT_SERVERS: int  # client: (SERVERS, packed list, apart)

@final
class Message:
    """One message, as it came; immutable."""

    @property
    def topic(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def text(self) -> str: ...
    def json(self) -> Any: ...
    @property
    def id(self) -> str: ...
    @property
    def time(self) -> datetime: ...
    @property
    def time_ns(self) -> int: ...
    @property
    def sender(self) -> str: ...
    @property
    def kind(self) -> str: ...  # publish, post, pin, push, request, reply; notify, withdrawn
    @property
    def fields(self) -> dict[str, Any]: ...  # its address beside the topic
    @property
    def kept(self) -> bool: ...  # it was kept, and handed over when the subscription began
    @property
    def last(self) -> bool: ...  # no more replies to the same request, or messages of the same backlog, follow
    @property
    def replayed(self) -> bool: ...  # it was stored before the subscription asked for it
    @property
    def position(self) -> Position | None: ...  # where it is stored
    @property
    def broker(self) -> str | None: ...
    @property
    def stream(self) -> str | None: ...
    @property
    def offset(self) -> int | None: ...
    @property
    def sequence(self) -> int | None: ...
    @property
    def stored_ns(self) -> int | None: ...
    @property
    def deliveries(self) -> int: ...  # how often its channel has handed it out
    @property
    def channel(self) -> Any: ...  # that handed it out; None if it was dropped
    def ack(self) -> Awaitable[None]: ...
    def extend(self) -> Awaitable[None]: ...
    def nack(self, delay: float | str | timedelta | None = None, reason: str | None = None) -> Awaitable[None]: ...
    def reject(self, reason: str) -> Awaitable[None]: ...  # it is a dead letter at once
    @property
    def missed(self) -> int: ...  # how many messages of this subscription were dropped right before this one

@final
class Chunk:
    """Bytes to write; supports the buffer protocol and len()."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Inbox:
    """What has arrived for one subscription and was not taken yet."""

    def take(self, most: int) -> list[Message]: ...
    def __len__(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def missed(self) -> int: ...  # total, dropped by the broker or here
    @property
    def received(self) -> int: ...  # total messages that arrived, dropped ones not counted
    @property
    def full(self) -> bool: ...  # over its limit, and not much room again since

@final
class Session:
    """Client side of a connection: encodes what is sent, decodes what arrives."""

    def __new__(cls, session: int, *, gather: int = 131072) -> Self: ...
    def attach(self, on_output: Callable[[], object] | None) -> None:
        """Forget the last connection (slots, half frames, unsent output); on_output() is called when output begins to wait.

        None = no connection. Not open for publishes until open() is called.
        """
    def open(self, *, frame: int, topic: int, fields: int, topics: int) -> None: ...
    def skip(self, number: int) -> None: ...  # use no number up to this one any more
    def writable(self, yes: bool) -> None:
        """Back pressure of the transport: while False publish() and publish_many() take nothing."""
    def defaults(self, fields: bytes) -> None: ...  # fields of messages that are published without any
    def publish(
        self, topic: str, payload: bytes | str, fields: bytes = ..., scope: int = 0
    ) -> Coroutine[Any, Any, None] | None:
        """Encode a PUBLISH. None: not taken (not open, not writable, or `gather` bytes wait already): flush, wait, try again."""
    def publish_many(
        self,
        topic: str,
        payloads: Sequence[bytes | str],
        start: int,
        fields: bytes = ...,
        flags: int = 0,
        times: tuple[int, int] = ...,
        scope: int = 0,
    ) -> tuple[int, int]:
        """Encode from payloads[start] on; the index of the first that was not taken, and the number of the first that was."""
    def send(
        self,
        kind: int,
        topic: str,
        payload: bytes | str,
        *,
        flags: int = 0,
        aux: int = 0,
        each: int = 0,
        fields: bytes = ...,
        number: int = 0,
        time: int = 0,
        times: tuple[int, int] = ...,
    ) -> int:
        """Encode PUBLISH (0x10), PUSH (0x11) or REQUEST (0x12) whatever waits; its number."""
    def reply(self, call: int, payload: bytes | str, *, code: int = 0, flags: int = 0, fields: bytes = ...) -> None: ...
    def accept(self, call: int, code: int) -> None: ...  # the answer to an ASK
    def cancel(self, number: int) -> None: ...
    def hello(self, map_bytes: bytes) -> None: ...
    def subscribe(
        self,
        sub: int,
        pattern: str,
        *,
        group: str = "",
        flags: int = 0,
        policy: int = 0,
        rules: bytes = ...,
        notify: bool = False,
        since: bytes = ...,
    ) -> int: ...  # notify: a message of kind "notify" follows the kept ones
    def unsubscribe(self, sub: int) -> int: ...
    def serve(self, service: int, topic: str, flags: int = 0) -> int: ...
    def unserve(self, service: int) -> int: ...
    def reached(self, sub: int) -> list[tuple[tuple[str, str], int]]: ...  # (broker, stream) -> the next offset
    def channel(self, kind: int, id: int, rest: bytes) -> int: ...  # a frame about a channel; its number
    def own(self, id: int, owner: ref[Any] | None) -> None: ...  # of the channel whose _ack and _nack its messages call
    def hold(self, sub: int, full: bool, taken: int) -> None: ...  # nothing without a connection
    def ping(self, token: int) -> None: ...
    def close(self, code: int, text: str) -> None: ...
    def take(self) -> memoryview | None:
        """Everything that waits to be written."""
    @property
    def waiting(self) -> int: ...  # bytes of output that wait
    def feed(self, data: Buffer, size: int) -> list[tuple[Any, ...]] | None:
        """Decode data[:size]. Raises errors.RemoteProtocolError when the broker broke the rules."""
    def inbox(self, sub: int, *, messages: int, bytes: int, policy: int) -> Inbox:
        """Make the inbox of a subscription (before subscribe()). It outlives connections. A full one drops by its policy;
        under `block` and `disconnect` EVENT_FULL tells of it and what is on its way is still taken."""
    def forget(self, sub: int) -> None: ...
    def settle(self, sub: int) -> bool:
        """What a subscription knew to be kept and was not handed over again is gone; whether that was something."""

@disjoint_base
class Publisher:
    """Base of a bus: publish() encodes what can go out at once and leaves the rest to `_publish` of the class below it."""

    def __new__(cls, *_args: Any, **_keywords: Any) -> Self: ...
    def _bind(self, session: Session) -> None:
        """The session to encode into; the first one counts."""
    @overload
    def publish(
        self,
        topic: str,
        payload: object = b"",
        *,
        fields: Fields | None = None,
        confirm: Literal[False] = False,
        offline: Offline | None = None,
        scope: Scope = "global",
    ) -> Coroutine[Any, Any, None]: ...
    @overload
    def publish(
        self,
        topic: str,
        payload: object = b"",
        *,
        fields: Fields | None = None,
        confirm: Literal[True],
        offline: Offline | None = None,
        scope: Scope = "global",
    ) -> Coroutine[Any, Any, int]: ...
    @overload
    def publish(
        self,
        topic: str,
        payload: object = b"",
        *,
        fields: Fields | None = None,
        durable: Literal[True],
        expires: float | str | timedelta | datetime | None = None,
        delay: float | str | timedelta | None = None,
        deliver_at: datetime | None = None,
        timeout: float | str | timedelta | None = None,
    ) -> Coroutine[Any, Any, Position]: ...
    @overload
    def publish(
        self,
        topic: str,
        payload: object = b"",
        *,
        fields: Fields | None = None,
        confirm: bool = False,
        offline: Offline | None = None,
        durable: bool = False,
        expires: float | str | timedelta | datetime | None = None,
        delay: float | str | timedelta | None = None,
        deliver_at: datetime | None = None,
        scope: Scope = "global",
        timeout: float | str | timedelta | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Send a message to all who subscribed to its topic.

        With `confirm` it returns how many connections received it. `offline` says what happens while there is no
        connection, if not what connect() was told. `durable` stores it in the stream of its topic and returns its position
        once it is as safe as the stream promises, or raises Timeout after `timeout`, which says whether the message may still be
        stored. `scope` is "global", "local" (clients of the same node of a cluster) or "remote" (of the other nodes).
        """

_Kept: TypeAlias = tuple[int, int, str, int, str, bytes]
"""Client number, session and name of the sender, flags, topic, body."""

@final
class Engine:
    """Broker side: every connection, subscription and service."""

    def __new__(
        cls,
        *,
        frame: int,
        topic: int,
        fields: int,
        subscriptions: int,
        expressions: int,
        outbox: int,
        topics: int,
        senders: int,
        pending: int,
        patience_ms: int,
        stall_ms: int,
        links: int = 0,
        defaults: bytes | None = None,
    ) -> Self: ...
    def connect(self, write: Callable[[memoryview], object]) -> int:
        """A new connection; write(view) is called by flush() with what is to be sent."""
    def dial(self, write: Callable[[memoryview], object], hello: bytes) -> int:
        """A connection to another node that we have made: HELLO is queued, EVENT_WELCOME or EVENT_CLOSE is the answer."""
    def admit_node(self, conn: int, session: int, name: str, client: int, version: int, welcome: bytes) -> bool:
        """Let another node in after its EVENT_HELLO; until link() there are only node() and EVENT_NODE."""
    def link(self, conn: int) -> None:
        """Make a link of the connection with another node: tell it all that our clients want, and what changes.

        What it sends as a link before that waits (EVENT_PAUSE, then EVENT_RESUME). Raises if `links` is 0.
        """
    def limit_link(self, conn: int, frame: int) -> None:
        """The longest frame that another node takes from its clients; what is longer is not sent to it."""

    def node(self, conn: int, type: int, number: int, body: bytes, ordered: bool = False) -> None:
        """Say something to another node. Ordered: it hears nothing more of this connection before it has dealt with it."""
    def willing(self, conn: int, number: int, code: int) -> None: ...  # answers EVENT_ASK of a link
    def disconnect(self, conn: int) -> None: ...
    def feed(self, conn: int, data: Buffer, size: int) -> list[tuple[Any, ...]] | None:
        """Handle every frame of data[:size], then flush()."""
    def resume(self, conn: int) -> list[tuple[Any, ...]] | None:
        """Go on with what a paused connection had sent, then flush()."""
    def flush(self) -> list[tuple[Any, ...]] | None:
        """write() what the connections that aren't paused have waiting (call after accept, subscribe, result, ...)."""
    def writing(self, conn: int, yes: bool) -> list[tuple[Any, ...]] | None:
        """pause_writing (False) and resume_writing (True, also flushes) of the transport."""
    def tick(self, now_ms: int) -> list[tuple[Any, ...]] | None:
        """Let time pass: stuck connections are found, blocked publishers released; then flush()."""
    def waiting(self) -> list[int]: ...  # connections whose publishes are set aside
    def blocked(self) -> bool: ...  # somebody is blocked: tick often
    def idle(self, ticks: int) -> list[int]:
        """Connections that sent nothing during the last `ticks` beats (see beat())."""
    def beat(self) -> None:
        """One more beat of the clock that idle() counts in."""
    def ping(self, conn: int, token: int) -> None: ...
    def accept(self, conn: int, session: int, name: str, client: int, version: int, welcome: bytes) -> int | None:
        """Open the connection; another connection with the same session (to be closed with SESSION_TAKEN), or None."""
    def subscribe(
        self,
        conn: int,
        sub: int,
        number: int,
        flags: int,
        policy: int,
        pattern: str,
        group: str,
        rules: bytes,
        handed: list[_Kept] | None,
    ) -> int:
        """Add it, hand over what is kept for it, and queue the RESULT; its code."""
    def hand(self, conn: int, subs: list[int], message: _Kept) -> bool:
        """Give one connection a kept message."""
    def miss(self, conn: int, subs: list[int]) -> None:
        """Count a message that these don't get for lack of room, and tell them."""
    def withdraw(self, message: _Kept, far: bool) -> None:
        """Tell the clients who watch that a kept message is gone, which one of another node has sent or not."""
    def want_room(self, conn: int, sub: int | None = None) -> None:
        """Have EVENT_ROOM tell when little waits for a connection, or for one of its subscriptions and that takes something."""
    def publish(self, message: _Kept, served: list[str] | None = None) -> tuple[int, list[str]]:
        """Send a message that is kept to the clients who subscribed to it now; how many connections, and groups of which one got it.

        One of another node: these groups were served there.
        """
    def settle(self, conn: int) -> None:
        """Let a connection go on that EVENT_KEEP held up."""
    def serve(self, conn: int, service: int, number: int, topic: str, flags: int) -> int: ...
    def ask(self, conn: int, service: int, call: int, origin: int, topic: str, frame: bytes) -> bool:
        """Ask a shared service with the frame of a REQUEST whether it is willing; False: it takes nothing more."""
    def call(self, conn: int, service: int, call: int, origin: int, topic: str, frame: bytes) -> bool:
        """Hand a REQUEST to a shared service; False: it takes nothing more."""
    def call_off(self, conn: int, call: int) -> None:
        """Tell another node that nobody waits for its answer to an `ask` or `call` any more."""

    def answer(self, conn: int, number: int, flags: int, code: int, fields: bytes, payload: bytes) -> None:
        """Answer who asked a shared service; without PARTIAL it is the end."""
    def refuse(self, conn: int, number: int, code: int, text: str) -> None:
        """Answer SUBSCRIBE or SERVE with an error."""
    def internal(self, topic: str) -> None:
        """Requests on this topic come as EVENT_CALL."""
    def reply(self, conn: int, call: int, code: int, payload: bytes) -> None:
        """Answer an internal call."""
    def result(self, conn: int, number: int, code: int, value: int, text: str) -> None: ...
    def close(self, conn: int, code: int, text: str) -> None:
        """Queue CLOSE; nothing is read from the connection any more."""
    def away(self) -> None:
        """Queue AWAY on the connection of every client."""
    def tell_servers(self, list: bytes, apart: bool) -> None:
        """Queue SERVERS on the connection of every client, with APART or without."""
    def pending(self, conn: int) -> int: ...  # bytes in its outbox
    def add_stream(self, stream: int, name: str, guid: bytes, log: Log, patterns: list[str] | None) -> None:
        """Add a stream, or give it other topics; None: everything that no other stream takes."""
    def set_level(self, stream: int, level: int) -> None:
        """How safe a stored message of a stream is from now on, as the number that STREAM has; clients are told with the next one."""
    def remove_stream(self, stream: int) -> None: ...
    def follow_stream(self, stream: int, yes: bool) -> None: ...  # whether EVENT_STORED tells that more of it is safe
    def recovered(self, stream: int, end: int, whole: bool) -> None:
        """A stream has its lost end again up to this offset, which is not delivered as news. `whole`: no more will come."""
    def commit(self, stream: int) -> list[tuple[Any, ...]] | None:
        """Deliver and answer what has become safe; call it when the log's fileno() is readable."""
    def add_cursor(self, conn: int, sub: int, stream: int) -> None:
        """A subscription that misses nothing of a stream; it is behind until replay() says that it isn't."""
    def far_stream(self, guid: bytes, name: str) -> int:
        """The number of a stream of another node."""
    def far_behind(self, stream: int) -> None:
        """The way to a stream of another node is lost: who was given it live is behind (EVENT_BEHIND)."""
    def delivered(self, stream: int) -> int: ...  # below this offset everything was delivered to who subscribed
    def has_room(self, conn: int, sub: int) -> bool: ...
    def replay(
        self,
        conn: int,
        sub: int,
        stream: int,
        block: bytes,
        next: int,
        selection: Selection,
        held: bytes | None,
        end: bool = True,
    ) -> tuple[int, bytes | None, bool]:
        """Give a subscription what it asked for of a block that ends before `next`: (where to read on, the record that is kept
        back since it may be the last, whether it is live now). `end`: whether another node, whose stream it is, had no more."""
    def hand_records(
        self, conn: int, id: int, stream: int, block: Block, spans: list[tuple[int, int]], deliveries: int
    ) -> tuple[int, list[tuple[int, int]]]:
        """Hand these records (first offset, how many) to the consumer of a channel; how many, and those that have expired or
        are not there."""
    def store(
        self, ticket: int, topic: str, sender: str, time: int, session: int, fields: bytes, payload: bytes
    ) -> None:
        """Store a message of the broker itself; EVENT_OWN says what became of it. One with the same session is stored once."""
    def tell_ended(self, conn: int, id: int, code: int, text: str) -> None: ...  # a channel is gone
    def release(self, stream: int, block: bytes) -> bool:
        """Store messages that waited and are due now once more, at the end of their stream; whether they could be."""
    def tell_gap(self, conn: int, sub: int, stream: int, begin: int, end: int) -> None: ...
    def stats(self) -> dict[str, int]: ...
    def connection(self, conn: int) -> dict[str, int]: ...  # the figures of one connection

def matches(a: str, b: str) -> bool:
    """Whether some concrete topic belongs to both patterns. Either may be a `re:` pattern; both: errors.InvalidPattern."""

def hold_clock(at: int) -> None:
    """Hold the engine's clocks at a time in nanoseconds since 1970, for the whole process; 0 lets them run. For simulations."""

def check_topic(topic: str, *, wildcards: bool = True) -> str:
    """The topic without its leading slash; raises errors.InvalidTopic."""

def check_pattern(pattern: str) -> str:
    """As check_topic, `re:` patterns too; raises errors.InvalidTopic or errors.InvalidPattern."""

@final
class Selection:
    """What a subscription asks for, to hold it against messages that are kept; raises as a SUBSCRIBE would be refused."""

    def __new__(cls, pattern: str, rules: bytes = ...) -> Self: ...
    @property
    def literal(self) -> str | None: ...  # the one topic it can mean, if it has no wildcards
    def covers(self, topic: str) -> bool: ...
    def matches(
        self, topic: str, fields: bytes, payload: bytes, sender: str = "", session: int = 0, time: int = 0
    ) -> bool: ...

def check_fields(fields: bytes) -> None:
    """Raises errors.InvalidFields if these are not the fields of a message (a MessagePack map; empty = none)."""

@final
class Rules:
    """The compiled rules of a subscription, as SUBSCRIBE carries them; immutable."""

    def __new__(cls, rules: bytes) -> Self:
        """Raises errors.InvalidRule."""
    def matches(
        self, topic: str, fields: bytes, payload: bytes, sender: str = "", session: int = 0, time: int = 0
    ) -> bool:
        """Whether all rules hold for a message. What can't be evaluated is no match and counted in `errors`."""
    @property
    def equalities(self) -> list[tuple[str, bytes]]: ...  # rules that ask a field to equal a value, sorted by name
    @property
    def errors(self) -> int: ...  # how often a rule could not be evaluated

Row: TypeAlias = tuple[str, bytes, bytes | None, str, int, int, int, int, int]
"""topic, payload, fields (MessagePack), sender, session, number, time, expires (0 = never), due (0 = at once)"""
StoredRow: TypeAlias = tuple[int, int, int, str, bytes, bytes | None, str, int, int, int, int, int]
"""offset, sequence, stored, topic, payload, fields, sender, session, number, time, expires, due"""
Damage: TypeAlias = tuple[str, int, int, int | None, str]
"""file, position, first offset that is lost, the one behind the last (None: unknown), what it is"""

@final
class Log:
    """The stored log of a stream. Times are UTC, nanoseconds since 1970; ages nanoseconds. Any thread may call anything.

    Raises errors.DataFailed if it can't be opened, read or written, or is closed.
    """

    @staticmethod
    def open(
        folder: str | PathLike[str] | SimulatedFiles | None,
        *,
        name: str = "stream",
        begin: int = 0,
        by_hand: bool = False,
        safety: Literal["memory", "written", "synced"] = "written",
        bucket_bytes: int = ...,
        bucket_age: int = ...,
        max_age: int = ...,
        max_bytes: int = ...,
        max_count: int = ...,
        hold: int = ...,
        once_age: int = ...,
        max_delay: int = ...,
        pending_bytes: int = ...,
    ) -> Log:
        """Open or make it in a folder of its own; None: in memory. One that is made begins with the offset `begin`. Defaults: buckets of 64 MiB or an hour, kept for a day,
        publishers remembered for 15 minutes, 16 MiB may wait to be written. 0 as a max: no limit. Nothing from `hold` on is removed.
        `by_hand`: on simulated files, nothing is written before write() is called."""
    @staticmethod
    def view(folder: str | PathLike[str], *, name: str = "stream") -> Log:
        """What a folder has now, for reading only: nothing is written, also not to mend it. Somebody else may be writing to it.
        What is not written wholly is left out. DataFailed: it can't be read, or there is none."""
    @staticmethod
    def front(
        *,
        name: str,
        next: int,
        stored: int,
        sequences: dict[str, int],
        sent: list[tuple[int, int, int, int, int]],
        waiting: Sequence[tuple[int, int, int, int]],
        keep_bytes: int = ...,
        once_age: int = ...,
        max_delay: int = ...,
        pending_bytes: int = ...,
    ) -> Log:
        """The front of a stream whose records somebody else stores: in memory, of the safe ones the last `keep_bytes` (16 MiB).

        What is stored already is told by its next offset, when its newest record was stored, the last sequence of each topic,
        and who sent what, in the order of offsets: (session, number, offset, sequence, how many that follow each other),
        and what waits to be due (when, offset, session, number).
        fileno() is readable when something waits to be stored: then call hear() and unstored()."""
    def unstored(self, most: int) -> tuple[int, int, bytes] | None:
        """Of a front: what was appended and not taken yet, about so many bytes: (first offset, the one behind the last, block)."""
    def stored(self, upto: int) -> None:
        """Of a front: everything below this offset that was taken is stored, so it is safe."""
    def fail(self, error: str, *, taken: bool = True) -> None:
        """Of a front: what waits is not stored, all of it or only what was not taken yet. settle() or the engine's commit() takes it
        back; appending is refused with this error for 100 ms."""
    def set(
        self,
        *,
        safety: Literal["memory", "written", "synced"] = ...,
        bucket_bytes: int = ...,
        bucket_age: int = ...,
        max_age: int = ...,
        max_bytes: int = ...,
        max_count: int = ...,
        hold: int = ...,
        once_age: int = ...,
        max_delay: int = ...,
        pending_bytes: int = ...,
    ) -> None:
        """Change settings; the others stay."""
    def fileno(self) -> int | None:
        """Readable when `safe` has moved on or a write has failed: then call settle(). None: flush() does it all."""
    def hear(self) -> None: ...  # when fileno() is readable, before the engine's commit()
    def settle(self) -> tuple[int, int, str] | None:
        """Take back what could not be written: (first offset, the one behind the last, why). Both will be given again."""
    def append(self, rows: list[Row], now: int) -> list[tuple[int, int]]:
        """Offset and sequence of each row that was taken: fewer when too much waits to be written. A row whose session and
        number are stored already gets the position it has (sequence 0: its record is gone). ValueError: too large, or too old
        to tell. errors.DataFailed: the last write failed; the next one is tried after 100 ms."""
    def append_block(self, block: bytes, now: int, skip: int = 0) -> int:
        """The same for the messages of a block without the first so many; how many were taken."""
    def copy(self, block: bytes) -> bool:
        """Take the records of a block of another log as they are, all or none; offsets that are left out stay so. False: too much
        waits to be written. ValueError: it is none that could follow. errors.DataFailed as append()."""
    def mend(self, block: bytes) -> int:
        """Put records back where they are missing, from the beginning of a hole that `damage` has, or behind those that were put there; how
        many. 0: there is no such hole, they are not what was there, or something waits to be written. errors.DataFailed if a file can't be
        written. They count when mended() was called."""
    def mended(self) -> None:
        """No more are put back now: see what is there. Then `damage` has less."""
    def trim_to(self, first: int) -> tuple[int, int, int]:
        """Of a copy: remove the buckets that lie before this offset. If that is all, it goes on from there."""
    def confirm(self, upto: int | None) -> None:
        """Nothing from this offset on is `safe`, whatever the disk has: somebody else has to have it, too. None: the disk alone
        counts. What was safe stays so. The engine's commit() is due afterwards."""
    def refuse(self, why: str | None) -> None:
        """With a reason, refuse every new message; resends of stored ones are answered as before. None: take them again."""
    @property
    def failure(self) -> str | None: ...  # why the last write failed; None: there was none, or later ones succeeded
    def rest(self, yes: bool) -> None:
        """Take nothing new for now, as if too much waited to be written; the engine's commit() is due afterwards."""
    @property
    def written(self) -> int: ...  # as safe, whether or not it was confirmed
    def read_written(self, offset: int, most: int) -> tuple[int, int, bytes]:
        """As read(), up to `written`."""
    def flush(self) -> None:
        """Have what was appended written; it is stored when `safe` is above its offset."""
    def write(self) -> None:
        """Of a log by hand: write what was flushed; then hear() and the engine's commit() are due, as if fileno() were readable."""
    @property
    def unwritten(self) -> int: ...  # bytes that were flushed and are not written yet
    @property
    def safe(self) -> int: ...  # offset behind the last record that is as safe as promised; no reader sees more
    @property
    def stuck(
        self,
    ) -> tuple[str, int] | None: ...  # why what is told to be safe is not written, or not synced; records
    @property
    def first(self) -> int: ...  # the first offset that is there
    @property
    def next(self) -> int: ...  # the offset that is given next
    def read(self, offset: int, most: int) -> tuple[int, int, bytes]:
        """(first, next, block): a block of at most so many bytes, but at least one record if there is one. `first` above
        `offset`: what lies between is gone. `next` is where to read on."""
    def columns(
        self,
        offset: int,
        most: int,
        wanted: list[str],
        selection: Selection | None = None,
        end: int = ...,
        now: int = 0,
    ) -> tuple[int, int, int, list[tuple[Literal["signed", "microseconds", "text", "binary"], list[ColumnBuffer]]]]:
        """(first, next, rows, columns): what read() would give up to the offset `end`, as columns() would, but plain: texts instead
        of dictionaries, microseconds instead of nanoseconds, and numbers with a sign."""
    def find_time(self, stored: int) -> int:
        """Offset of the first record that was stored at this time or later."""
    def find(self, topic: str, sequence: int) -> int | None:
        """Offset of the first record of a topic with this sequence or a later one."""
    def placed(self, session: int, first: int, count: int) -> list[tuple[int, int, int]]:
        """Number, offset and sequence (0: its record is gone) of what a publisher's session has stored, of so many numbers from one on; safe or
        not yet. What is not remembered any more is left out."""
    def skip(self, offset: int, selection: Selection) -> int:
        """The offset from which on there may be something for a selection: buckets without its topics are skipped."""
    def topics(self) -> list[tuple[str, int, int, int]]:
        """Topics that are there: first and last sequence, number of records."""
    def sequences(self) -> dict[str, int]:
        """The last sequence of each topic that was ever stored."""
    @property
    def topic_count(self) -> int: ...  # topics that were ever stored
    def waiting(self) -> list[tuple[int, int]]:
        """Messages that wait to be due: when, and their offset, the next first."""
    @property
    def waits(self) -> tuple[int, int]:
        """How many messages wait to be due, and how many went before they were."""
    def drop_waiting(self, first: int) -> None:
        """Of a front: nothing below this offset is there any more."""
    def release(self, block: bytes, now: int) -> int:
        """Append the messages of a block that are due by now, and wait, once more; how many were taken."""
    def trim(self, now: int, hold: int = ...) -> tuple[int, int, int]:
        """Remove old buckets, none with offsets of `hold` (here or as a setting) or above: how many records, bytes and buckets went."""
    @property
    def held(self) -> tuple[int, int]:
        """What was over the limits at the last trim() and is held: records, bytes."""
    @property
    def damage(self) -> list[Damage]: ...  # what is known to be lost or changed
    def check(self) -> list[Damage]:
        """Read everything, so that all damage becomes known."""
    @property
    def usage(self) -> tuple[int, int, int]: ...  # bytes of records, buckets, bytes of the files that find them
    def close(self) -> None:
        """Write all that waits and let go of the folder."""

@final
class Block:
    """A block of a log that is handed out a few records at a time."""

    def __new__(cls, block: bytes) -> Self: ...
    def __len__(self) -> int: ...
    def get(self, offset: int) -> StoredRow | None: ...
    def find(self, begin: int, selection: Selection, but: str, now: int) -> list[tuple[int, int]]:
        """The records from an offset on that are selected, don't wait to be due, have not expired and have another topic than
        `but`: first offset, how many."""

@final
class SimulatedFiles:
    """Files in memory whose power can be cut, for tests: give them to Log.open() as its folder."""

    def __new__(cls) -> Self: ...
    def power_cut(self, seed: int) -> None:
        """Keep what was synced, and of the rest what chance wants; nothing fails any more. Logs on it are dead."""
    def fail(self, *, room: int | None = None, sync: bool = False, fuse: int | None = None) -> None:
        """From now on: bytes that can still be written, whether syncs fail, calls until nothing works any more."""
    def survivor(self) -> SimulatedFiles:
        """What the next process finds when the one that has these files was killed: a copy of all that was written."""
    def contents(self) -> list[tuple[str, bytes]]: ...

@final
class ColumnBuffer:
    """One of the buffers of a column."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def furthest(messages: list[Message]) -> list[tuple[tuple[str, str], int]]:
    """How far these go in each stream: (broker, stream), and the offset behind the last."""

def handed(
    messages: Iterable[Message], channel: ref[Any]
) -> list[tuple[tuple[str, str], list[tuple[int, int]]]] | None:
    """The offsets of messages that this channel handed out, as (first, how many) in their order, by (broker, stream); None: one is
    not of it. `channel` is the weak reference that Session.own() got."""

def block_records(block: bytes) -> list[StoredRow]:
    """The messages of a block; ValueError if it is none."""

def block_part(block: bytes, offset: int, most: int) -> tuple[int, int, bytes]:
    """What a block has from this offset on, as Log.read() gives it."""

def encode_records(rows: Sequence[StoredRow]) -> bytes:
    """The block of these messages."""

def select_records(
    block: bytes, selection: Selection | None = None, begin: int = 0, end: int = ..., now: int = 0
) -> bytes:
    """A block of those records only that are asked for; its offsets grow, but not by one."""

def block_messages(
    block: bytes,
    place: tuple[str, str],
    selection: Selection | None = None,
    begin: int = 0,
    end: int = ...,
    now: int = 0,
    head: int = 0,
) -> list[Message]:
    """The messages of a block that are asked for; `place` is the broker's guid and the stream's name. ValueError if it is none.

    `head` bytes before the block are skipped.
    """

def columns(
    blocks: list[bytes],
    wanted: list[str],
    selection: Selection | None = None,
    begin: int = 0,
    end: int = ...,
    now: int = 0,
) -> tuple[int, list[tuple[Literal["unsigned", "nanoseconds", "text", "binary", "dictionary"], list[ColumnBuffer]]]]:
    """Rows, and kind and buffers of each column that is wanted; see busway.arrow. Records that expired by `now` are left out."""
