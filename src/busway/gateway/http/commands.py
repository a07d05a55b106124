"""Commands of the JSON door: maps each command of a client to streams, channels and services of the bus.

Sessions call `run`. A command is done when `run` returns, or when the returned coroutine ends.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from busway.client.bus import Bus
from busway.errors import BusError, Code
from busway.gateway.auth.guard import Guard
from busway.gateway.http import fast_publish
from busway.gateway.http.publisher import Publisher
from busway.gateway.http.recent import RecentMessages
from busway.gateway.json import envelope
from busway.gateway.json.config import Http
from busway.gateway.json.counters import Counters
from busway.gateway.json.envelope import FLAT, Request
from busway.gateway.json.session import Session
from busway.gateway.json.statuses import BAD, NO_CMD, NO_DATA, NOT_FOUND, OK, Refused
from busway.gateway.queues import filters
from busway.gateway.queues.calls import GONE_TEXT, Calls
from busway.gateway.queues.consumers import QueueConsumers
from busway.gateway.queues.names import DELETE_ON_EXIT, channel_name
from busway.gateway.queues.queues import Queue, Queues
from busway.gateway.queues.round_robin import Subscriber
from busway.gateway.queues.services import DoorServices

log = logging.getLogger("busway.gateway")

Continuation: TypeAlias = Coroutine[Any, Any, None]
Command: TypeAlias = Callable[[Session, Request], Continuation | None]

_MOST: Final = 1024
"""Most messages of one `take`."""


class Commands:
    """The commands, and the state that the clients of a door share."""

    def __init__(self, bus: Bus, queues: Queues, settings: Http, guard: Guard) -> None:
        self._bus = bus
        self._publish = bus.publish
        self.open = not guard.active
        """Whether requests need no signature, because the door has no keys."""
        self._settings = settings
        self._guard = guard
        self.queues = queues
        self.consumers = QueueConsumers(bus, settings.aside)
        self.sessions: dict[str, Session] = {}
        self.counters = Counters()
        self.recent = RecentMessages()
        self.publisher = Publisher(bus, queues, self.counters, self.recent)
        self.services = DoorServices(bus, queues, settings, self)
        self.calls = Calls(bus, queues, self.services, settings, guard, self.publish)
        self._tasks: set[asyncio.Task[None]] = set()
        self._table: dict[str, Command] = {
            "pub": self._pub,
            "sub": self._sub,
            "take": self._take,
            "create": self._create,
            "remove": self._remove,
            "query": self._query,
            "ping": self._ping,
            "route": self._route,
            "bind": self._bind,
        }

    def run(self, session: Session, request: Request) -> Continuation | None:
        """Start a command. Raises Refused, a BusError, ValueError or TypeError."""
        cmd = request.cmd
        if self._guard.active and cmd != "ping":
            self._guard.check(request, session.user)
        if cmd is None:
            if not request.is_call and not (request.at_root and self.services.root is not None):
                request.plain = False
                raise Refused(BAD, NO_CMD)
            self.counters.requested("call")
            self.calls.begin(session, request)
            return None
        if (command := self._table.get(cmd)) is None:
            self.counters.requested("unknown")
            raise Refused(NOT_FOUND, f"Command({cmd}) Not Found")
        self.counters.requested(cmd)
        return command(session, request)

    async def _allow(self, request: Request, action: str, mq: str, shown: str | None = None) -> None:
        """Refuse a request for a queue or its channel unless the key allows all topics concerned. They need not exist.

        The stream of a queue may take further topics, and so may a channel deliver them: the key must allow each.
        """
        if not self._guard.active:
            return
        self._guard.allow(request, action, mq)
        queue = self.queues.find(mq)
        if queue is None or queue.topics == (queue.topic,):
            return
        for topic in queue.topics if shown is None else await self.queues.channel_topics(queue, shown):
            self._guard.allow(request, action, topic)

    # Messages.

    def _pub(self, session: Session, request: Request) -> None:
        head = request.head
        ack = True if "ack" not in head else request.flag("ack", True)
        if not ack and request.is_call:
            self.calls.begin(session, request)
            return
        mq = head.get("mq")
        if type(mq) is not str or not mq:
            mq = _mq(request)
        if self._guard.active:
            self._guard.allow(request, "publish", mq)
        queue = self.queues.find(mq)
        if queue is None or queue.topic is None:
            raise Refused(NOT_FOUND, f"MQ({mq}) Not Found")
        self.publisher.publish(session, request, queue, mq if ack else None)

    def publish(self, queue: Queue, request: Request, sender: str) -> Coroutine[Any, Any, Any]:
        """Publish the message of a request durably; the result is done when it is stored."""
        assert queue.topic is not None
        payload, fields = envelope.stored(request, request.ident, sender)
        return self._publish(queue.topic, payload, fields=fields, durable=True)

    async def _sub(self, session: Session, request: Request) -> None:
        mq, shown = _mq(request), _channel(request)
        await self._allow(request, "subscribe", mq, shown)
        queue = self.queues.get(mq)
        window = request.number("window")
        if window is not None and window < 0:
            raise Refused(BAD, "window must be 0 or more")
        ack = request.flag("ack", True)
        key = queue.stream, channel_name(shown)
        subscriber = session.subscribers.get(key)
        name = "topic" if request.form == FLAT else "filter"
        text = request.text(name)
        if subscriber is not None and request.head.get(name) is None:  # clients renew their credit without the filter
            text = subscriber.filter
        takes = filters.takes(filters.check(text)) if text else None
        body = f"OK, SUB (mq={mq},channel={shown})"
        if subscriber is not None and not subscriber.consumer.ended:
            subscriber.credit, subscriber.filter, subscriber.takes, subscriber.form = window, text, takes, request.form
            if ack:
                session.answer(request.form, request.ident, OK, body)
            subscriber.consumer.subscribers.changed()
            subscriber.consumer.dispatch()
            return
        consumer = await self._open_consumer(queue, mq, shown)
        self.consumers.check(consumer, session)
        if session.closed:
            self.consumers.released(consumer)
            return
        if ack:
            session.answer(request.form, request.ident, OK, body)
        if subscriber is not None:
            self.consumers.leave(subscriber)
        prefix = fast_publish.prefix(mq, shown)
        subscriber = Subscriber(session, request.form, mq, shown, window, text, takes, prefix=prefix)
        session.subscribers[key] = subscriber
        consumer.subscribe(subscriber)
        if shown == mq and queue.topic is not None and self._guard.may(request, "serve", queue.topic):
            await self.services.add(session, queue.topic, mq, mq if mq.startswith("/") else None)

    async def _open_consumer(self, queue: Queue, mq: str, shown: str) -> Any:
        try:
            return await self.consumers.open(queue, shown)
        except BusError as error:
            if error.code == Code.NO_CHANNEL:
                raise Refused(NOT_FOUND, f"Channel({shown}) Not Found") from None
            if error.code == Code.NO_STREAM:
                raise Refused(NOT_FOUND, f"MQ({mq}) Not Found") from None
            raise

    def _take(self, session: Session, request: Request) -> None:
        session.background(request, self._take_and_answer(session, request))

    async def _take_and_answer(self, session: Session, request: Request) -> None:
        mq, shown = _mq(request), _channel(request)
        await self._allow(request, "subscribe", mq, shown)
        queue = self.queues.get(mq)
        most = request.number("window")
        most = max(1, min(most if most is not None else 1, _MOST))
        timeout = min(request.seconds("timeout") or 0.0, self._settings.longest)
        consumer = await self._open_consumer(queue, mq, shown)
        self.consumers.check(consumer, session)
        try:
            messages = await consumer.take(most, timeout)
        finally:
            self.consumers.released(consumer)
        self.counters.delivered += len(messages)
        body = [envelope.shown(request.form, mq, shown, message, queue.base) for message in messages]
        head = {"mq": mq, "channel": shown}
        session.answer(request.form, request.ident, OK if body else NO_DATA, body, head)

    # Queues and channels.

    async def _create(self, session: Session, request: Request) -> None:
        mq = request.text("mq")
        if mq is None:
            raise Refused(BAD, "Missing mq field" if request.form == FLAT else "create command, missing mq field")
        self._guard.allow(request, "manage", mq)
        shown = request.text("channel")
        mask, offset = request.number("channelMask"), request.number("offset")
        topic, checksum = request.text("topic") or request.text("filter"), request.text("checksum")
        if shown is not None:
            channel_name(shown)  # refuses a wrong name before the queue is created
            await self._allow(request, "manage", mq, shown)
        if (whole := request.number("mqMask")) is not None:
            await self._allow(request, "manage", mq)
        queue = await self.queues.create(mq, request.text("mqType"), whole)
        if shown is not None:
            await self.queues.create_channel(queue, shown, mask=mask, topic=topic, offset=offset, checksum=checksum)
        session.answer(request.form, request.ident, OK, f"OK, CREATE ({_names(mq, shown)})")

    async def _remove(self, session: Session, request: Request) -> None:
        mq, shown = _mq(request), request.text("channel")
        await self._allow(request, "manage", mq, shown)
        if shown is None:
            await self.queues.remove(mq)
        else:
            await self.queues.remove_channel(mq, shown)
        session.answer(request.form, request.ident, OK, f"OK, REMOVE ({_names(mq, shown)})")

    async def _query(self, session: Session, request: Request) -> None:
        mq, shown = _mq(request), request.text("channel")
        await self._allow(request, "look", mq, shown)
        found = await (self.queues.query(mq) if shown is None else self.queues.query_channel(mq, shown))
        session.answer(request.form, request.ident, OK, found)

    def _ping(self, session: Session, request: Request) -> None:
        """Answer a heartbeat if it has an id. Released clients send it without an id and can't handle an answer."""
        if request.ident is not None:
            session.answer(request.form, request.ident, OK, "OK, PING")

    # Services.

    def _route(self, session: Session, request: Request) -> None:
        """Send the answer of a service to the session that called it."""
        target = request.text("recver" if request.form == FLAT else "target") or request.text("target")
        if target is None:
            raise Refused(BAD, f"Missing {'recver' if request.form == FLAT else 'target'} field")
        ack = request.flag("ack", False)
        found = self.sessions.get(target)
        if found is not None:
            self.calls.route(session, found, request)
        if ack:
            status, body = (OK, "OK") if found is not None else (NOT_FOUND, f"Target={target} Not Found")
            session.answer(request.form, request.ident, status, body)

    async def _bind(self, session: Session, request: Request) -> None:
        mq = _mq(request)
        clear = request.flag("clearBind", True)
        self._guard.allow(request, "serve", mq)
        self.queues.get(mq)
        urls = self.services.urls(mq, request.body)
        for topic in urls:
            self._guard.allow(request, "serve", topic)
        await self.services.bind(session, mq, urls, clear=clear)
        session.answer(request.form, request.ident, OK, f"OK, BIND URL (mq={mq})")

    # Disconnected clients.

    def disconnected(self, session: Session) -> None:
        """A client has disconnected: remove its subscriptions, its services and its queues with DELETE_ON_EXIT."""
        self.sessions.pop(session.id, None)
        self.calls.disconnected(session)
        temporary, served = set(), set()
        for subscriber in session.subscribers.values():
            self.consumers.leave(subscriber)
            if subscriber.consumer.queue.mask & DELETE_ON_EXIT:
                temporary.add(subscriber.mq)
            if self.calls.pending(subscriber.consumer.queue.stream) or self.services.pending(
                subscriber.consumer.queue.stream
            ):
                served.add(subscriber.consumer.queue)
        session.subscribers.clear()
        self._start_task(self.services.leave(session))
        for queue in served:
            self._start_task(self._unserved(queue))
        for mq in temporary:
            self._start_task(self._remove_queue(mq))

    async def _remove_queue(self, mq: str) -> None:
        queue = self.queues.find(mq)
        if queue is None or self.consumers.subscribers(queue.stream):
            return
        await self.consumers.close_unused(queue.stream)
        if not await self.queues.consumers(queue):
            await self.queues.remove(mq)

    async def _unserved(self, queue: Queue) -> None:
        """A service has disconnected. If it was the last one of the queue, answer its calls in flight with an error."""
        if not await self.services.served(queue):
            self.calls.unserved(queue.stream)
            self.services.unserved(queue.stream, GONE_TEXT)

    def _start_task(self, work: Continuation) -> None:
        task = asyncio.get_running_loop().create_task(_log_errors(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Finish the running tasks, and close all consumers and services."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self.consumers.close()
        await self.services.close()


async def _log_errors(work: Continuation) -> None:
    try:
        await work
    except BusError as error:
        log.debug("can't clean up after a disconnected client: %s", error)


def _mq(request: Request) -> str:
    if (mq := request.text("mq")) is None:
        raise Refused(BAD, "Missing mq field")
    return mq


def _channel(request: Request) -> str:
    if (channel := request.text("channel")) is None:
        raise Refused(BAD, "Missing channel field")
    return channel


def _names(mq: str, channel: str | None) -> str:
    return f"mq={mq}" if channel is None else f"mq={mq},channel={channel}"
