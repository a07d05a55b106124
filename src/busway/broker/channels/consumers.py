"""The consumers of channels: they join, leave, take and acknowledge by frames.

The hub passes the frames of clients to this module, and `cluster.channels` those of other nodes.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from busway.authority.grants import Verb
from busway.broker.access.permissions import demand
from busway.broker.channels import frames
from busway.broker.channels.acks import Acks
from busway.broker.channels.driver import ChannelDriver
from busway.broker.channels.frames import Join
from busway.broker.channels.sinks import ClientSink, Sink
from busway.broker.channels.state.consumers import Who
from busway.errors import BusError, Code, LimitExceeded, Rejected, StoreFailed

if TYPE_CHECKING:
    from busway.broker.channels.manager import Channels
    from busway.broker.peers import ChannelPeers, Members
    from busway.broker.runtime import Runtime
    from busway.broker.session import Session


class ChannelConsumers:
    """The consumers of all channels of one broker."""

    def __init__(self, runtime: "Runtime", channels: "Channels", peers: "ChannelPeers", members: "Members") -> None:
        self._runtime = runtime
        self._channels = channels
        self._peers = peers
        self._members = members
        self._consumed: dict[int, dict[int, ChannelDriver]] = {}
        """The consumed channels: by connection and the number that the connection has given the channel."""
        self._joining: dict[Who, int] = {}
        """Consumers whose join is in progress, with the call number of their CHANNEL frame."""
        self._clients = ClientSink(runtime, peers)
        self.node_sinks: dict[int, Sink] = {}
        """The sinks of links to other nodes, by connection. All other connections are clients."""
        self._shared_takes: dict[tuple[Who, int], Callable[[int], None]] = {}
        """Takes that are part of a take from several nodes, with the function that gets their count."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.acks = Acks(runtime, self, peers)

    def close(self) -> None:
        """Cancel all joins in progress."""
        for task in list(self._tasks):
            task.cancel()

    def end(self, driver: ChannelDriver, code: Code, text: str) -> None:
        """Remove and inform all consumers of a channel that has ended."""
        for conn, number in list(driver.consumers):
            self._consumed.get(conn, {}).pop(number, None)
            self.sink((conn, number)).ended((conn, number), code, text)
            if conn not in self.node_sinks:
                self._peers.left((conn, number))
        driver.consumers.clear()

    def sink(self, consumer: Who) -> Sink:
        """The sink of a consumer."""
        return self.node_sinks.get(consumer[0], self._clients)

    def taken(self, consumer: Who, number: int, got: int) -> None:
        """Answer a take that has ended with so many messages."""
        if (finish := self._shared_takes.pop((consumer, number), None)) is not None:
            finish(got)
        else:
            self.sink(consumer).result(consumer, number, Code.OK, got, "")

    # Frames.

    def frame(self, conn: int, kind: int, number: int, call: int, rest: bytes) -> None:
        """Handle a CHANNEL, UNCHANNEL, TAKE, ACK or NACK frame."""
        try:
            if kind == frames.CHANNEL:
                self._begin((conn, number), call, frames.join_of(rest))
                return
            if (driver := self._consumed.get(conn, {}).get(number)) is None:
                if kind == frames.UNCHANNEL:  # the channel has ended, or its join is not finished
                    self._joining.pop((conn, number), None)
                    self.sink((conn, number)).result((conn, number), call, Code.OK, 0, "")
                    return
                raise Rejected("this connection does not consume that channel; join it first", code=Code.NO_CHANNEL)
            if kind == frames.UNCHANNEL:
                self._leave((conn, number), driver, lost=rest == frames.LOST)
                self.sink((conn, number)).result((conn, number), call, Code.OK, 0, "")
            elif kind == frames.TAKE:
                self._take((conn, number), driver, call, frames.take_of(rest))
            elif kind == frames.NACK:
                self._nacked((conn, number), driver, call, frames.nack_of(rest))
            else:
                self._acked((conn, number), driver, call, rest)
        except BusError as error:
            self.sink((conn, number)).result((conn, number), call, error.code, 0, error.reason)

    def _acked(self, consumer: Who, driver: ChannelDriver, call: int, rest: bytes) -> None:
        """Handle an ACK: for messages of this broker, or of another node of the cluster."""
        guid, entries = frames.entries_of(rest)
        if self._is_here(consumer, guid):
            self._acknowledge(consumer, lambda: self.acks.acknowledge(consumer, driver, call, entries))
        elif self._members.clustered:
            self._peers.acknowledge(consumer, guid or "", call, frames.ACK, rest[frames.GUID :])

    def _nacked(self, consumer: Who, driver: ChannelDriver, call: int, nack: "frames.Nack") -> None:
        """Handle a NACK: for messages of this broker, or of another node of the cluster."""
        if self._is_here(consumer, nack.broker or None):
            self._acknowledge(consumer, lambda: self.acks.fail(consumer, driver, call, nack))
        elif self._members.clustered:
            rest = msgspec.msgpack.encode(msgspec.structs.replace(nack, broker=""))
            self._peers.acknowledge(consumer, nack.broker, call, frames.NACK, rest)

    def _is_here(self, consumer: Who, guid: str | None) -> bool:
        """True if this broker has stored the messages. Raises StoreFailed if `guid` is not a known node."""
        if guid is None or guid == self._runtime.guid:
            return True
        if not self._members.clustered or consumer[0] in self.node_sinks:
            raise StoreFailed(f"the broker {guid} has stored the message and is not known here; it may be redelivered")
        return False

    def _acknowledge(self, consumer: Who, work: Callable[[], None]) -> None:
        work()
        if consumer[0] not in self.node_sinks:
            self._peers.acknowledged_here(consumer)

    def _begin(self, consumer: Who, call: int, join: Join) -> None:
        conn, number = consumer
        driver = self._consumed.get(conn, {}).get(number)
        if (
            driver is not None
            and join.again
            and (driver.stream.config.name, driver.name) == (join.stream, join.channel)
        ):
            self.window(consumer, join.window)
            if conn not in self.node_sinks:
                self._peers.joined(consumer, join, driver)
            self.sink(consumer).result(consumer, call, Code.OK, driver.machine.floor, "")
            return
        if driver is not None or consumer in self._joining:
            raise Rejected(f"the connection consumes a channel with number {number} already", code=Code.DUPLICATE)
        self._check_room(conn)
        self._joining[consumer] = call
        self._spawn(self._join(self._runtime.sessions.get(conn), consumer, call, join))

    def _check_room(self, conn: int) -> None:
        if conn not in self.node_sinks and len(self._consumed.get(conn, ())) >= (
            most := self._runtime.settings.subscriptions
        ):
            reason = f"the connection consumes {most} channels, which is the limit; leave one first"
            raise LimitExceeded(reason, code=Code.TOO_MANY_SUBSCRIPTIONS)

    async def _join(self, session: "Session | None", consumer: Who, call: int, join: Join) -> None:
        driver: ChannelDriver | None = None
        try:
            self.demand(consumer[0], "consume", join.stream, join.channel, join.settings)
            driver = await self._channels.find_or_declare(join)
            # Again, because another client may have changed its pattern.
            self.demand(consumer[0], "consume", join.stream, join.channel, join.settings)
            if session is None or session.conn >= 0:
                self._enter(driver, consumer, call, join)
        except BusError as error:
            if session is None or session.conn >= 0:
                self.sink(consumer).result(consumer, call, error.code, 0, error.reason)
        except Exception as error:  # noqa: BLE001, logged and counted by unexpected()
            self._runtime.unexpected(error, session, "a channel")
        finally:
            if self._joining.get(consumer) == call:
                del self._joining[consumer]
            if driver is not None and not driver.consumers:
                self._channels.await_consumer(driver)
            self._runtime.flush()

    def demand(self, conn: int, verb: Verb, stream: str, channel: str | None, settings: dict[str, Any]) -> None:
        """Raise Forbidden unless the user of a connection may use a verb on all messages of a channel.

        These are the messages that it delivers now, and those with these settings. The broker stores dead letters for
        the user, so the topic for them needs `store`. Nodes check their own clients.
        """
        session = self._runtime.sessions.get(conn)
        if session is None or session.grants is None:
            return
        topic, letters = settings.get("topic"), settings.get("dead_letter")
        topics = self._channels.topics(stream, channel, topic if isinstance(topic, str) else None)
        demand(self._runtime, conn, verb, *topics)
        if isinstance(letters, str) and letters:
            demand(self._runtime, conn, "store", letters.replace("{stream}", "*").replace("{channel}", "*"))

    def _enter(self, driver: ChannelDriver, consumer: Who, call: int, join: Join) -> None:
        conn, number = consumer
        if self._joining.get(consumer) != call or driver.over:
            raise Rejected(f"the channel {join.channel!r} was left or removed during the join", code=Code.NO_CHANNEL)
        self._check_room(conn)  # again: several joins may have been in progress
        driver.catch_up()
        session = self._runtime.sessions.get(conn)
        actions = driver.machine.join(consumer, join.window, driver.now, "" if session is None else session.name)
        if self._stopping:
            driver.machine.stop(consumer)
        driver.consumers.add(consumer)
        if conn in self.node_sinks:
            driver.drained.add(consumer)
        self._consumed.setdefault(conn, {})[number] = driver
        if not driver.stream.copied:
            self._runtime.engine.follow_stream(driver.stream.number, yes=True)
        self.sink(consumer).result(consumer, call, Code.OK, driver.machine.floor, "")
        if conn not in self.node_sinks:
            self._peers.joined(consumer, join, driver)
        driver.do(actions)

    def _leave(self, consumer: Who, driver: ChannelDriver, *, lost: bool = False, grace: float = 0.0) -> None:
        self._consumed.get(consumer[0], {}).pop(consumer[1], None)
        for key in [key for key in self._shared_takes if key[0] == consumer]:
            del self._shared_takes[key]
        if consumer[0] not in self.node_sinks:
            self._peers.left(consumer, lost=lost)
        driver.left(consumer)
        driver.do(driver.machine.leave(consumer, driver.now, lost=lost, grace=grace))
        number = driver.stream.number
        if not driver.stream.copied and not any(
            other.consumers for other in self._channels.channels.get(number, {}).values()
        ):
            self._runtime.engine.follow_stream(number, yes=number in self._runtime.watched)

    def _take(self, consumer: Who, driver: ChannelDriver, call: int, take: "frames.Take | int") -> None:
        machine = driver.machine
        if consumer[0] in self.node_sinks:
            driver.drained.add(consumer)
        elif self._peers.take(consumer, call, take):
            return
        if isinstance(take, int):
            driver.do(machine.cancel_take(consumer, take, driver.now))
        elif machine.takes(consumer) >= (most := self._runtime.settings.pending):
            reason = f"the consumer has {most} takes pending, which is the limit; await one first"
            raise LimitExceeded(reason, code=Code.TOO_MANY_PENDING)
        else:
            driver.do(machine.take(consumer, call, take.most, take.timeout, driver.now, whole=take.whole))

    def take_here(self, consumer: Who, number: int, most: int, finish: Callable[[int], None]) -> None:
        """Deliver up to so many of this broker's messages at once, as part of a take from several nodes.

        `finish` is called with the number of messages delivered.
        """
        driver = self._consumed.get(consumer[0], {}).get(consumer[1])
        if driver is None:
            finish(0)
            return
        self._shared_takes[consumer, number] = finish
        driver.drained.add(consumer)
        driver.do(driver.machine.take(consumer, number, most, 0.0, driver.now))

    def in_flight(self, consumer: Who) -> int:
        """The number of messages that a consumer has in flight."""
        driver = self._consumed.get(consumer[0], {}).get(consumer[1])
        return 0 if driver is None else driver.machine.count_in_flight(consumer)

    def window(self, consumer: Who, window: int) -> None:
        """Set how many of this broker's messages a consumer may have in flight."""
        if (driver := self._consumed.get(consumer[0], {}).get(consumer[1])) is not None:
            driver.do(driver.machine.join(consumer, window, driver.now))

    # Connections.

    def room(self, conn: int) -> None:
        """Resume delivery to a connection that has room in its outbox again."""
        if self._stopping:
            return
        for number, driver in list(self._consumed.get(conn, {}).items()):
            driver.do(driver.machine.unstop((conn, number), driver.now))

    def stop_delivering(self) -> None:
        """Deliver no more messages, because the broker is about to stop. Consumers can still acknowledge."""
        self._stopping = True
        for conn, consumed in self._consumed.items():
            for number, driver in consumed.items():
                driver.machine.stop((conn, number))

    def left(self, conn: int) -> None:
        """A client closes its connection: it leaves all its channels."""
        for number, driver in list(self._consumed.get(conn, {}).items()):
            self._leave((conn, number), driver)

    def forget(self, conn: int) -> None:
        """A connection was lost: its messages are redelivered to other consumers. The client may come back."""
        for number, driver in list(self._consumed.get(conn, {}).items()):
            self._leave((conn, number), driver, lost=True, grace=self._runtime.settings.grace)
        self._consumed.pop(conn, None)
        for consumer in [consumer for consumer in self._joining if consumer[0] == conn]:
            del self._joining[consumer]

    def _spawn(self, work: Any) -> None:
        task = self._runtime.loop.create_task(work, name="busway channel")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
