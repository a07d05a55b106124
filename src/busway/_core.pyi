"""Native engine (crates/): frames, topics, routing, outboxes, logs and the client codec; brokers and clients call it."""

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
"""The highest supported protocol version."""
ERRORS: dict[str, tuple[int, bool]]
"""Name -> (code, connection survives)."""

# Events are tuples whose first item is one of these numbers. HELLO, LOGIN, SUBSCRIBE and SERVE block their connection
# until accept(), challenge(), subscribe(), serve() or refuse() answers them. If the peer sent more, flush() then returns an EVENT_RESUME.
EVENT_HELLO: int  # broker: (HELLO, conn, version, map_bytes)
EVENT_LOGIN: int  # broker: (LOGIN, conn, map_bytes): the answer to challenge()
EVENT_REFUSED: int  # broker: (REFUSED, conn, verb, topic): the first refusal by grants since take_refusals()
EVENT_SUBSCRIBE: int  # broker: (SUBSCRIBE, conn, sub, number, flags, policy, pattern, group, rules, since)
EVENT_SERVE: int  # broker: (SERVE, conn, service, number, topic, flags)
EVENT_CALL: int  # broker, internal service: (CALL, conn, call, message); client: (CALL, service, call, message)
EVENT_CLOSE: int  # broker: (CLOSE, conn, code, text); client: (CLOSE, code, text)
EVENT_FAIL: int  # broker: (FAIL, conn, code, text): a protocol error of the peer; CLOSE is queued, close after flushing
EVENT_PAUSE: int  # broker: (PAUSE, conn): stop reading from the connection until EVENT_RESUME
EVENT_RESUME: int  # broker: (RESUME, conn): call engine.resume(conn) and read again
EVENT_UNSERVE: int  # broker: (UNSERVE, conn, service, topic): a shared service has ended
EVENT_KEEP: (
    int  # broker: (KEEP, conn, number, flags, topic, time, fields, payload, frame); blocked until unblock() or refuse()
)
# broker: (REQUEST, conn, number, flags, topic, each_ms, limit_ms, frame): to a shared service; conn may be a link
EVENT_REQUEST: int
EVENT_CANCEL: int  # broker: (CANCEL, conn, number): the requester of a shared service no longer waits
EVENT_ACCEPT: int  # broker: (ACCEPT, conn, call, code): the answer to ask()
EVENT_ANSWER: int  # broker: (ANSWER, conn, call, flags, code, fields, payload): the reply to call()
EVENT_ASK: (
    int  # client: (ASK, service, call, message); broker, of a link: (ASK, conn, number, topic, frame), see willing()
)
EVENT_BEHIND: int  # broker: (BEHIND, conn, sub, stream, offset): a stream subscription has no room from this offset on
EVENT_LATER: int  # broker: (LATER, stream, due, offset): a delayed message is safe
EVENT_ROOM: int  # broker: (ROOM, conn): a connection that was behind, or named in want_room(), has room
EVENT_CHANNEL: int  # broker: (CHANNEL, conn, kind, id, number, rest): a frame about a channel
# broker: (STORED, stream): `safe` has advanced; client: (STORED, number, count, origin, offset, sequence, again)
EVENT_STORED: int
EVENT_OWN: int  # broker: (OWN, ticket, code, text): the result of store()
EVENT_NODE: int  # broker: (NODE, conn, type, number, body): a control frame of another node
EVENT_SYNCED: int  # broker: (SYNCED, conn): a link has announced all subscriptions and services of its clients
EVENT_CONFLICT: int  # broker: (CONFLICT, conn, topic): an exclusive service exists here and behind that link
EVENT_PROVIDER: int  # broker: (PROVIDER, conn, service, topic, flags): a provider of a shared service is behind a link
EVENT_ENDED: int  # client: (ENDED, id, code, text): a channel has ended
EVENT_GAP: int  # client: (GAP, sub, (broker, stream), begin, end)
EVENT_UNSUBSCRIBE: int  # broker: (UNSUBSCRIBE, conn, sub): a stream subscription has ended
EVENT_DOUBT: (
    int  # client: (DOUBT, sub): not all known retained messages were delivered again; call withdraw_missing() later
)
EVENT_READ: int  # broker: (READ, conn): read again, only its publishes wait
EVENT_WAIT: int  # broker: (WAIT, conn): its publishes wait until a slow subscriber has room: call tick() often
EVENT_FLOW: int  # client: (FLOW, stop): suspend publishing, or resume it
EVENT_YIELD: int  # broker: (YIELD, conn): stop reading, process other connections, then do as for EVENT_RESUME
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
EVENT_CHALLENGE: int  # client: (CHALLENGE, map_bytes): login() answers it
EVENT_SERVERS: int  # client: (SERVERS, packed list, apart)

VERBS: tuple[str, ...]
"""The operations that grants allow, by number."""

@final
class GrantSet:
    """The compiled grants of one role: pairs of bits of verbs and a pattern."""

    def __new__(cls, allow: Sequence[tuple[int, str]], deny: Sequence[tuple[int, str]]) -> Self: ...

@final
class Grants:
    """All grants of one user."""

    def __new__(cls, sets: Sequence[GrantSet]) -> Self: ...
    def may(self, verb: int, requested: str) -> bool:
        """Whether a verb is allowed on a whole topic or pattern. False for an invalid one."""
    def decide(
        self, verb: int, requested: str
    ) -> tuple[Literal["allowed", "filtered", "denied", "missing", "complex"], int, int]:
        """The decision, with the set and the number of the grant in it. Denies are numbered after allows."""
    def touches(self, verbs: int, requested: str) -> bool:
        """Whether one of these verbs (bits) is allowed on some topic of a pattern."""

@final
class Message:
    """A received message; immutable."""

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
    def fields(self) -> dict[str, Any]: ...
    @property
    def kept(self) -> bool: ...  # a retained message, delivered when the subscription began
    @property
    def last(self) -> bool: ...  # no more replies to the same request, or messages of the same backlog, follow
    @property
    def replayed(self) -> bool: ...  # it was stored before the subscription began
    @property
    def position(self) -> Position | None: ...
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
    def deliveries(self) -> int: ...  # how often its channel has delivered it
    @property
    def channel(self) -> Any: ...  # the channel that delivered it; None if that object no longer exists
    def ack(self) -> Awaitable[None]: ...
    def extend(self) -> Awaitable[None]: ...
    def nack(self, delay: float | str | timedelta | None = None, reason: str | None = None) -> Awaitable[None]: ...
    def reject(self, reason: str) -> Awaitable[None]: ...  # moves it to the dead-letter topic at once
    @property
    def missed(self) -> int: ...  # how many messages of this subscription were dropped before this one

@final
class Chunk:
    """Bytes to write; supports the buffer protocol and len()."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Inbox:
    """Messages that have arrived for a subscription and were not taken yet."""

    def take(self, most: int) -> list[Message]: ...
    def __len__(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def missed(self) -> int: ...  # total of messages that the broker or the inbox dropped
    @property
    def received(self) -> int: ...  # total of messages that arrived, without dropped ones
    @property
    def full(self) -> bool: ...  # it has exceeded its limit, and does not have enough room again

@final
class Session:
    """Client side of a connection: encodes outgoing frames and decodes incoming ones."""

    def __new__(cls, session: int, *, gather: int = 131072) -> Self: ...
    def attach(self, on_output: Callable[[], object] | None) -> None:
        """Reset the state of the last connection (slots, partial frames, unsent output). None: no connection.

        The session calls on_output() when output begins to wait. It accepts no publishes before open().
        """
    def open(self, *, frame: int, topic: int, fields: int, topics: int) -> None: ...
    def skip(self, number: int) -> None: ...  # do not use numbers up to this one
    def writable(self, yes: bool) -> None:
        """Set the backpressure of the transport: while False, publish() and publish_many() accept nothing."""
    def defaults(self, fields: bytes) -> None: ...  # fields of messages that are published without fields
    def publish(
        self, topic: str, payload: bytes | str, fields: bytes = ..., scope: int = 0
    ) -> Coroutine[Any, Any, None] | None:
        """Encode a PUBLISH. None: not accepted (not open, not writable, or `gather` bytes wait): flush, wait, retry."""
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
        """Encode payloads from `start` on. Return the index of the first one not accepted, and the first number."""
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
        """Encode PUBLISH (0x10), PUSH (0x11) or REQUEST (0x12), however much output waits. Return its number."""
    def reply(self, call: int, payload: bytes | str, *, code: int = 0, flags: int = 0, fields: bytes = ...) -> None: ...
    def accept(self, call: int, code: int) -> None: ...  # the answer to an ASK
    def cancel(self, number: int) -> None: ...
    def hello(self, map_bytes: bytes) -> None: ...
    def login(self, map_bytes: bytes) -> None: ...
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
    ) -> int: ...  # notify: a message of kind "notify" follows the retained ones
    def unsubscribe(self, sub: int) -> int: ...
    def serve(self, service: int, topic: str, flags: int = 0) -> int: ...
    def unserve(self, service: int) -> int: ...
    def reached(self, sub: int) -> list[tuple[tuple[str, str], int]]: ...  # (broker, stream) -> the next offset
    def channel(self, kind: int, id: int, rest: bytes) -> int: ...  # encode a frame about a channel; its number
    def own(self, id: int, owner: ref[Any] | None) -> None: ...  # the channel whose _ack and _nack its messages call
    def hold(self, sub: int, full: bool, taken: int) -> None: ...  # does nothing without a connection
    def ping(self, token: int) -> None: ...
    def close(self, code: int, text: str) -> None: ...
    def take(self) -> memoryview | None:
        """Return all output that waits to be written."""
    @property
    def waiting(self) -> int: ...  # bytes of output that wait
    def feed(self, data: Buffer, size: int) -> list[tuple[Any, ...]] | None:
        """Decode data[:size]. Raises errors.RemoteProtocolError if the broker violates the protocol."""
    def inbox(self, sub: int, *, messages: int, bytes: int, policy: int) -> Inbox:
        """Create the inbox of a subscription, before subscribe(). It outlives connections. If full, it drops messages
        by its policy. Under `block` and `disconnect` it reports EVENT_FULL and still accepts messages in flight."""
    def forget(self, sub: int) -> None: ...
    def withdraw_missing(self, sub: int) -> bool:
        """Withdraw retained messages that were not delivered again after a reconnect. Return True if there were any."""

@disjoint_base
class Publisher:
    """Base class of a bus: publish() encodes a message at once if possible, else it calls the subclass's `_publish`."""

    def __new__(cls, *_args: Any, **_keywords: Any) -> Self: ...
    def _bind(self, session: Session) -> None:
        """Set the session that encodes the messages. Only the first call has an effect."""
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
        """Send a message to all subscribers of its topic.

        With `confirm` it returns how many connections received the message. `offline` overrides the behaviour of
        connect() while disconnected. `durable` stores the message in the stream of its topic, and returns its position
        when it has the stream's safety, or raises Timeout after `timeout`; the error says whether the message may still
        be stored. `scope` is "global", "local" (clients of the same node of a cluster) or "remote" (of other nodes).
        """

_Kept: TypeAlias = tuple[int, int, str, int, str, bytes]
"""A retained message: client number, session and name of the sender, flags, topic, body."""

@final
class Engine:
    """Broker side: all connections, subscriptions and services."""

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
        """Add a connection. flush() calls write(view) with its output."""
    def dial(self, write: Callable[[memoryview], object], hello: bytes) -> int:
        """Add an outgoing connection to another node and queue HELLO. EVENT_WELCOME or EVENT_CLOSE is the answer."""
    def admit_node(self, conn: int, session: int, name: str, client: int, version: int, welcome: bytes) -> bool:
        """Admit another node after its EVENT_HELLO. Before link(), only node() and EVENT_NODE work on it."""
    def link(self, conn: int) -> None:
        """Turn a connection to another node into a link: announce the subscriptions and services of our clients.

        Frames that the peer sends as a link before this call wait (EVENT_PAUSE, then EVENT_RESUME). Raises if `links`
        is 0.
        """
    def limit_link(self, conn: int, frame: int) -> None:
        """Set the longest frame that another node accepts for its clients. Longer messages are not sent to it."""

    def node(self, conn: int, type: int, number: int, body: bytes, ordered: bool = False) -> None:
        """Send a control frame to another node. Ordered: the peer processes it before it reads on."""
    def willing(self, conn: int, number: int, code: int) -> None: ...  # answers EVENT_ASK of a link
    def disconnect(self, conn: int) -> None: ...
    def feed(self, conn: int, data: Buffer, size: int) -> list[tuple[Any, ...]] | None:
        """Process all frames of data[:size], then flush()."""
    def resume(self, conn: int) -> list[tuple[Any, ...]] | None:
        """Process the frames that a paused connection had sent, then flush()."""
    def flush(self) -> list[tuple[Any, ...]] | None:
        """write() the output of all connections that are not paused. Call it after accept(), subscribe() and so on."""
    def writing(self, conn: int, yes: bool) -> list[tuple[Any, ...]] | None:
        """Report pause_writing (False) or resume_writing (True, also flushes) of the transport."""
    def tick(self, now_ms: int) -> list[tuple[Any, ...]] | None:
        """Set the time: find stalled connections, release blocked publishers, then flush()."""
    def waiting(self) -> list[int]: ...  # connections whose publishes wait
    def blocked(self) -> bool: ...  # a publisher is blocked: call tick() often
    def idle(self, ticks: int) -> list[int]:
        """Return the connections that sent nothing during the last `ticks` calls of beat()."""
    def beat(self) -> None:
        """Advance the clock of idle() by one."""
    def ping(self, conn: int, token: int) -> None: ...
    def accept(
        self,
        conn: int,
        session: int,
        name: str,
        client: int,
        version: int,
        welcome: bytes,
        grants: Grants | None = None,
    ) -> int | None:
        """Open the connection, with the grants of its user. Without grants it may do everything.

        Return another connection with the same session, to close as SESSION_TAKEN, or None.
        """
    def challenge(self, conn: int, map: bytes) -> None:
        """Ask a client to prove who it is, after its HELLO. EVENT_LOGIN has its answer."""
    def regrant(self, conn: int, grants: Grants | None) -> None:
        """Set other grants. They must allow all subscriptions and services of the connection."""
    def forbid(self, conn: int, verb: int, requested: str) -> str:
        """Count a refusal by the driver, as the engine counts its own. Return the text of the error."""
    def take_refusals(self, conn: int) -> int:
        """How many refusals there were on a connection since the last call."""
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
        retained: list[_Kept] | None,
    ) -> int:
        """Add a subscription, deliver its retained messages, and queue the RESULT. Return the code of the result."""
    def deliver_retained(self, conn: int, subs: list[int], message: _Kept) -> bool:
        """Deliver a retained message to subscriptions of a connection."""
    def miss(self, conn: int, subs: list[int]) -> None:
        """Count a message that these subscriptions miss for lack of room, and report it to the client."""
    def withdraw(self, message: _Kept, remote: bool) -> None:
        """Report to watching clients that a retained message is gone. `remote`: a client of another node had sent it."""
    def want_room(self, conn: int, sub: int | None = None) -> None:
        """Request EVENT_ROOM for when a connection has room, or one of its subscriptions."""
    def publish(self, message: _Kept, served: list[str] | None = None) -> tuple[int, list[str]]:
        """Send a retained message to its subscribers. Return how many connections, and the groups that received it.

        `served`: the groups that another node has delivered the message to.
        """
    def unblock(self, conn: int) -> None:
        """Resume a connection that EVENT_KEEP blocked."""
    def serve(self, conn: int, service: int, number: int, topic: str, flags: int) -> int: ...
    def ask(self, conn: int, service: int, call: int, origin: int, topic: str, frame: bytes) -> bool:
        """Ask a provider of a shared service with the frame of a REQUEST if it is willing. False: it has no room."""
    def call(self, conn: int, service: int, call: int, origin: int, topic: str, frame: bytes) -> bool:
        """Send a REQUEST to a provider of a shared service. False: it has no room."""
    def call_off(self, conn: int, call: int) -> None:
        """Report to another node that no requester waits for its answer to an `ask` or `call`."""

    def answer(self, conn: int, number: int, flags: int, code: int, fields: bytes, payload: bytes) -> None:
        """Answer the requester of a shared service. An answer without PARTIAL is the last one."""
    def refuse(self, conn: int, number: int, code: int, text: str) -> None:
        """Answer SUBSCRIBE or SERVE with an error."""
    def internal(self, topic: str) -> None:
        """Report requests on this topic as EVENT_CALL."""
    def reply(self, conn: int, call: int, code: int, payload: bytes) -> None:
        """Answer an internal call."""
    def result(self, conn: int, number: int, code: int, value: int, text: str) -> None: ...
    def close(self, conn: int, code: int, text: str) -> None:
        """Queue CLOSE, and ignore further input of the connection."""
    def away(self) -> None:
        """Queue AWAY on the connections of all clients."""
    def send_servers(self, list: bytes, apart: bool) -> None:
        """Queue SERVERS on the connections of all clients. `apart`: with the flag APART."""
    def pending(self, conn: int) -> int: ...  # bytes in its outbox
    def add_stream(self, stream: int, name: str, guid: bytes, log: Log, patterns: list[str] | None) -> None:
        """Add a stream, or change its topics. None: all topics that match no other stream."""
    def set_level(self, stream: int, level: int) -> None:
        """Set the safety level of messages of a stream, as the number in STREAM. The next STREAM frame reports it."""
    def remove_stream(self, stream: int) -> None: ...
    def follow_stream(self, stream: int, yes: bool) -> None: ...  # whether EVENT_STORED reports a new `safe`
    def recovered(self, stream: int, end: int, whole: bool) -> None:
        """The lost end of a stream is restored up to this offset, not to be delivered live. `whole`: it is complete."""
    def commit(self, stream: int) -> list[tuple[Any, ...]] | None:
        """Deliver and confirm messages that have become safe. Call it when the log's fileno() is readable."""
    def add_cursor(self, conn: int, sub: int, stream: int) -> None:
        """Add a stream subscription, which misses no message. It is behind until replay() reports that it is live."""
    def remote_stream(self, guid: bytes, name: str) -> int:
        """Return the number of a stream of another node."""
    def remote_behind(self, stream: int) -> None:
        """Report that the route to a remote stream is lost: its live subscribers fall behind (EVENT_BEHIND)."""
    def delivered(self, stream: int) -> int: ...  # everything below this offset was delivered to subscribers
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
        """Deliver the matching records of a block that ends before `next` to a subscription. Return the next offset to
        read, a record that is held back since it may be the last, and whether the subscription is live now. `end`: the
        node that owns the stream had no more records."""
    def deliver_records(
        self, conn: int, id: int, stream: int, block: Block, spans: list[tuple[int, int]], deliveries: int
    ) -> tuple[int, list[tuple[int, int]]]:
        """Deliver records, given as (first offset, count), to the consumer of a channel. Return how many it delivered,
        and the spans of those that have expired or are missing."""
    def store(
        self, ticket: int, topic: str, sender: str, time: int, session: int, fields: bytes, payload: bytes
    ) -> None:
        """Store a message of the broker itself. EVENT_OWN reports the result. A session stores a message only once."""
    def send_ended(self, conn: int, id: int, code: int, text: str) -> None: ...  # report that a channel has ended
    def release(self, stream: int, block: bytes) -> bool:
        """Append delayed messages that are due to the end of their stream. Return False if they could not be stored."""
    def send_gap(self, conn: int, sub: int, stream: int, begin: int, end: int) -> None: ...
    def scan_topics(self, level: TopicLevel, most: int) -> bool:
        """Add at most `most` topics to a report. Returns False after the last one."""
    def topic_users(self, topic: str) -> tuple[int, list[int], list[tuple[int, int, str]]]:
        """The messages of a topic, the connections that publish on it, and connection, id and group of subscriptions."""
    def stats(self) -> dict[str, int]: ...
    def connection(self, conn: int) -> dict[str, int]: ...  # the figures of one connection

@final
class TopicLevel:
    """The topics in use below a path, by their next segment; Engine.scan_topics() fills it."""

    def __new__(cls, path: str, *, begins: str = "", most: int = 10_000) -> Self: ...
    @property
    def branches(self) -> list[tuple[str, int, int, bool]]: ...
    # segment, number of topics, number of messages, whether the segment itself ends a topic
    @property
    def others(self) -> tuple[int, int]: ...  # topics and messages beyond the largest number of branches

def matches(a: str, b: str) -> bool:
    """True if some topic matches both patterns. One may be a `re:` pattern; two raise errors.InvalidPattern."""

def hold_clock(at: int) -> None:
    """Stop the engine's clocks at a time in nanoseconds since 1970, for the whole process; 0 lets them run.
    Simulations call it."""

def check_topic(topic: str, *, wildcards: bool = True) -> str:
    """Return the topic without its leading slash. Raises errors.InvalidTopic."""

def check_pattern(pattern: str) -> str:
    """As check_topic(), and also accept `re:` patterns. Raises errors.InvalidTopic or errors.InvalidPattern."""

@final
class Selection:
    """The pattern and rules of a subscription, to match retained and stored messages. Raises errors of SUBSCRIBE."""

    def __new__(cls, pattern: str, rules: bytes = ..., grants: Grants | None = None, verb: int = 0) -> Self:
        """With grants it matches only topics on which they allow the verb."""
    @property
    def literal(self) -> str | None: ...  # its topic, if the pattern has no wildcards
    def covers(self, topic: str) -> bool: ...
    def matches(
        self, topic: str, fields: bytes, payload: bytes, sender: str = "", session: int = 0, time: int = 0
    ) -> bool: ...

def check_fields(fields: bytes) -> None:
    """Raise errors.InvalidFields unless these are the fields of a message (a MessagePack map; empty = none)."""

@final
class Rules:
    """The compiled rules of a subscription, from their form in SUBSCRIBE; immutable."""

    def __new__(cls, rules: bytes) -> Self:
        """Raises errors.InvalidRule."""
    def matches(
        self, topic: str, fields: bytes, payload: bytes, sender: str = "", session: int = 0, time: int = 0
    ) -> bool:
        """True if all rules match a message. A rule that fails to evaluate does not match and counts in `errors`."""
    @property
    def equalities(self) -> list[tuple[str, bytes]]: ...  # rules that compare a field with a value, sorted by name
    @property
    def errors(self) -> int: ...  # how often a rule could not be evaluated

Row: TypeAlias = tuple[str, bytes, bytes | None, str, int, int, int, int, int]
"""topic, payload, fields (MessagePack), sender, session, number, time, expires (0 = never), due (0 = at once)"""
StoredRow: TypeAlias = tuple[int, int, int, str, bytes, bytes | None, str, int, int, int, int, int]
"""offset, sequence, stored, topic, payload, fields, sender, session, number, time, expires, due"""
Damage: TypeAlias = tuple[str, int, int, int | None, str]
"""file, position, first lost offset, the offset after the last lost one (None: unknown), description"""

@final
class Log:
    """The stored log of a stream. Times are UTC in nanoseconds since 1970; ages are nanoseconds. It is thread-safe.

    Raises errors.DataFailed if the log can't be opened, read or written, or is closed.
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
        keep_from: int = ...,
        once_age: int = ...,
        max_delay: int = ...,
        pending_bytes: int = ...,
    ) -> Log:
        """Open or create a log in its own folder; None: in memory. A new log begins with the offset `begin`. Defaults:
        buckets of 64 MiB or an hour, retention of a day, publishers remembered for 15 minutes, 16 MiB may wait to be
        written. A maximum of 0 is no limit. Records from the offset `hold` on are not removed; those before `keep_from`
        are, when a later bucket is full. `by_hand`: simulated files are written only by write()."""
    @staticmethod
    def view(folder: str | PathLike[str], *, name: str = "stream") -> Log:
        """Open the current state of a folder read-only, without repairs, even while another process writes to it.
        Incomplete records are left out. DataFailed: it can't be read, or does not exist."""
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
        """Open a front: the write buffer, in memory, of a stream whose records a database stores. It caches the last
        `keep_bytes` (16 MiB) of safe records.

        The arguments describe the stored records: the next offset, the time of the newest record, the last sequence of
        each topic, the publishers in the order of offsets as (session, number, offset, sequence, count of consecutive
        ones), and the delayed messages as (due, offset, session, number).
        fileno() is readable when records wait to be stored: then call hear() and unstored()."""
    def unstored(self, most: int) -> tuple[int, int, bytes] | None:
        """Take about `most` bytes of appended records of a front: (first offset, offset after the last, block)."""
    def stored(self, upto: int) -> None:
        """Report that the taken records of a front below this offset are stored, so that they are safe."""
    def fail(self, error: str, *, taken: bool = True) -> None:
        """Report that waiting records of a front can't be stored: all, or only those not taken yet. remove_unwritten() or the
        engine's commit() removes them. The log refuses to append with this error for 100 ms."""
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
        keep_from: int = ...,
        once_age: int = ...,
        max_delay: int = ...,
        pending_bytes: int = ...,
    ) -> None:
        """Change settings. The others keep their values."""
    def fileno(self) -> int | None:
        """A file descriptor that is readable when `safe` has advanced or a write has failed: then call remove_unwritten(). None:
        flush() writes synchronously."""
    def clear_signal(self) -> None: ...  # clear fileno() when it is readable, before the engine's commit()
    def remove_unwritten(self) -> tuple[int, int, str] | None:
        """Remove the records that could not be written: (first offset, offset after the last, reason). New records get
        these offsets again."""
    def append(self, rows: list[Row], now: int) -> list[tuple[int, int]]:
        """Return the offset and sequence of each accepted row; fewer if too much waits to be written. A duplicate gets
        the position of the stored record (sequence 0: the record is gone). ValueError: the row is too large, or too old
        to detect duplicates. errors.DataFailed: the last write failed; the log retries after 100 ms."""
    def append_block(self, block: bytes, now: int, skip: int = 0) -> int:
        """Append the messages of a block after the first `skip`. Return how many were accepted. Errors as append()."""
    def copy(self, block: bytes) -> bool:
        """Append the records of a block of another log with their offsets, all or none. Missing offsets stay missing.
        False: too much waits to be written. ValueError: the block can't follow. errors.DataFailed as append()."""
    def mend(self, block: bytes) -> int:
        """Restore missing records from the start of a hole in `damage`, or after restored ones. Return how many. 0:
        there is no such hole, the records differ from the lost ones, or data waits to be written. errors.DataFailed: a
        file can't be written. The records are visible after mended()."""
    def mended(self) -> None:
        """End the restore: reopen the restored records, which `damage` then no longer contains."""
    def trim_to(self, first: int) -> tuple[int, int, int]:
        """Remove the buckets of a mirror's copy before this offset. If none is left, the copy continues there."""
    def confirm(self, upto: int | None) -> None:
        """Limit `safe` to this offset until a mirror has the records. None: only the disk counts. Records that are safe
        stay safe. Call the engine's commit() afterwards."""
    def refuse(self, why: str | None) -> None:
        """Refuse new messages with this reason, but confirm duplicates of stored ones. None: accept messages again."""
    @property
    def failure(self) -> str | None: ...  # why the last write failed; None: no write failed, or a later one succeeded
    def rest(self, yes: bool) -> None:
        """Suspend the log: accept no records, as if too much waited to be written. Call the engine's commit() then."""
    @property
    def written(self) -> int: ...  # as `safe`, whether or not a mirror confirmed it
    def read_written(self, offset: int, most: int) -> tuple[int, int, bytes]:
        """As read(), up to `written`."""
    def flush(self, *, here: bool = False) -> None:
        """Start to write appended records. A record is stored when `safe` is above its offset. `here`: write them now if
        nothing else waits and they need no sync; fileno() is not readable for them."""
    def write(self) -> None:
        """Write flushed records of a log with `by_hand`. Then call hear() and the engine's commit()."""
    @property
    def unwritten(self) -> int: ...  # bytes that are flushed and not written yet
    @property
    def safe(self) -> int: ...  # offset after the last record with the configured safety; readers see no later ones
    @property
    def stuck(self) -> tuple[str, int] | None: ...  # why safe records are not written or synced; how many
    @property
    def first(self) -> int: ...  # the first stored offset
    @property
    def next(self) -> int: ...  # the offset of the next record
    def read(self, offset: int, most: int) -> tuple[int, int, bytes]:
        """Return (first, next, block) with a block of at most `most` bytes, but at least one record if there is one.
        If `first` is above `offset`, the records between are gone. `next` is the next offset to read."""
    def columns(
        self,
        offset: int,
        most: int,
        wanted: list[str],
        selection: Selection | None = None,
        end: int = ...,
        now: int = 0,
    ) -> tuple[int, int, int, list[tuple[Literal["signed", "microseconds", "text", "binary"], list[ColumnBuffer]]]]:
        """Return (first, next, rows, columns): the records of read() up to the offset `end` as plain columns: strings
        instead of dictionaries, microseconds instead of nanoseconds, and signed numbers."""
    def find_time(self, stored: int) -> int:
        """Return the offset of the first record that was stored at this time or later."""
    def find(self, topic: str, sequence: int) -> int | None:
        """Return the offset of the first record of a topic with this sequence or a later one."""
    def placed(self, session: int, first: int, count: int) -> list[tuple[int, int, int]]:
        """Return the number, offset and sequence (0: the record is gone) of the messages that a publisher's session has
        stored, safe or not, of `count` numbers from `first` on. Messages that the log has forgotten are left out."""
    def skip(self, offset: int, selection: Selection) -> int:
        """Return the first offset that may have a record for a selection, after buckets without its topics."""
    def topics(self) -> list[tuple[str, int, int, int]]:
        """Return the stored topics with their first and last sequence and number of records."""
    def sequences(self) -> dict[str, int]:
        """Return the last sequence of each topic that was ever stored."""
    @property
    def topic_count(self) -> int: ...  # the number of topics that were ever stored
    def waiting(self) -> list[tuple[int, int]]:
        """Return the due time and the offset of delayed messages, the next one first."""
    @property
    def waits(self) -> tuple[int, int]:
        """The number of delayed messages, and of those that were removed before they were due."""
    def drop_waiting(self, first: int) -> None:
        """Drop the delayed messages of a front below this offset, since their records were removed."""
    def release(self, block: bytes, now: int) -> int:
        """Append the delayed messages of a block that are due at `now` again. Return how many were accepted."""
    def trim(self, now: int, hold: int = ...) -> tuple[int, int, int]:
        """Remove old buckets without offsets of `hold` (here or as a setting) or above. Return how many records, bytes
        and buckets were removed."""
    @property
    def held(self) -> tuple[int, int]:
        """Records and bytes beyond the limits that the last trim() did not remove because of `hold`."""
    @property
    def damage(self) -> list[Damage]: ...  # the lost or corrupt places that are known
    def check(self) -> list[Damage]:
        """Read all records to find all damage."""
    @property
    def usage(self) -> tuple[int, int, int]: ...  # bytes of records, buckets, bytes of index files
    def close(self) -> None:
        """Write all waiting records and unlock the folder."""

@final
class Block:
    """A block of a log whose records channels deliver a few at a time."""

    def __new__(cls, block: bytes) -> Self: ...
    def __len__(self) -> int: ...
    def get(self, offset: int) -> StoredRow | None: ...
    def find(self, begin: int, selection: Selection, but: str, now: int) -> list[tuple[int, int]]:
        """Return the spans (first offset, count) of matching records from an offset on. Delayed and expired records and
        records with the topic `but` are left out."""

@final
class SimulatedFiles:
    """Files in memory for tests, which can fail or lose power. Pass them to Log.open() as its folder."""

    def __new__(cls) -> Self: ...
    def power_cut(self, seed: int) -> None:
        """Keep synced data and a random part of the rest, and end all failures. Logs on these files are unusable."""
    def fail(self, *, room: int | None = None, sync: bool = False, fuse: int | None = None) -> None:
        """Set failures: the bytes that can still be written, whether syncs fail, and the calls until all calls fail."""
    def survivor(self) -> SimulatedFiles:
        """Return a copy of all written data, as the next process finds it after this one was killed."""
    def contents(self) -> list[tuple[str, bytes]]: ...

@final
class ColumnBuffer:
    """A buffer of an Arrow column."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def furthest(messages: list[Message]) -> list[tuple[tuple[str, str], int]]:
    """Return (broker, stream) and the offset after the last message, for each stream of these messages."""

def delivered_offsets(
    messages: Iterable[Message], channel: ref[Any]
) -> list[tuple[tuple[str, str], list[tuple[int, int]]]] | None:
    """Return the offsets of messages that this channel delivered, as (first, count) in their order by (broker, stream).
    None: one of them is not from this channel. `channel` is the weak reference passed to Session.own()."""

def block_records(block: bytes) -> list[StoredRow]:
    """Return the messages of a block. Raises ValueError if it is not a block."""

def block_part(block: bytes, offset: int, most: int) -> tuple[int, int, bytes]:
    """Return the part of a block from this offset on, in the form of Log.read()."""

def encode_records(rows: Sequence[StoredRow]) -> bytes:
    """Return a block of these messages."""

def select_records(
    block: bytes, selection: Selection | None = None, begin: int = 0, end: int = ..., now: int = 0
) -> bytes:
    """Return a block of the matching records only. Its offsets increase, but not always by one."""

def block_messages(
    block: bytes,
    place: tuple[str, str],
    selection: Selection | None = None,
    begin: int = 0,
    end: int = ...,
    now: int = 0,
    head: int = 0,
) -> list[Message]:
    """Return the matching messages of a block. Raises ValueError if it is not a block.

    `place` is the broker's guid and the stream's name. `head` bytes before the block are skipped.
    """

def columns(
    blocks: list[bytes],
    wanted: list[str],
    selection: Selection | None = None,
    begin: int = 0,
    end: int = ...,
    now: int = 0,
) -> tuple[int, list[tuple[Literal["unsigned", "nanoseconds", "text", "binary", "dictionary"], list[ColumnBuffer]]]]:
    """Return the number of rows, and the kind and buffers of each wanted column, for busway.arrow. Records that expired
    by `now` are left out."""
