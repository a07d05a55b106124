"""Publishes the messages of clients of the JSON door: stores each one durably, then answers its client. A driver.

`commands.py` calls it for each `pub`, and `websocket.py` for the frames that `fast_publish.py` can read. The client gets
its answer as soon as the broker confirms the message, before its delivery and without a task.
"""

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from busway.client.bus import Bus
from busway.client.durable.in_flight import NO_TIMES, InFlight, Row
from busway.common import environment
from busway.errors import BusError
from busway.fields import encode_fields
from busway.gateway.http import fast_publish
from busway.gateway.http.recent import RecentMessages
from busway.gateway.json import envelope
from busway.gateway.json.counters import Counters
from busway.gateway.json.envelope import FLAT, Request
from busway.gateway.json.session import Session
from busway.gateway.json.statuses import NOT_FOUND, Refused, status_of
from busway.gateway.queues.queues import Queue, Queues
from busway.positions import Position

if TYPE_CHECKING:
    from busway.gateway.http.websocket import Socket

_decode: Final = msgspec.json.Decoder().decode


class Publisher:
    """Messages of all clients, in flight to the bus. It is the report of their durable publishes."""

    def __init__(self, bus: Bus, queues: Queues, counters: Counters, recent: RecentMessages) -> None:
        feed = bus.feed()
        self._begin, self._begin_later = feed.begin, feed.begin_later
        self._find = queues.find
        self._counters = counters
        self._recent = recent
        self._tasks: set[asyncio.Task[None]] = set()

    def publish(self, session: Session, request: Request, queue: Queue, mq: str | None) -> None:
        """Publish the message of a request. Without `mq` the client gets only errors. Raises the errors of fields."""
        payload, fields = envelope.stored(request, request.ident, session.id)
        packed, ident = encode_fields(fields), envelope.encoded(request.ident)
        self._send(
            (
                queue.name,
                payload,
                packed,
                NO_TIMES,
                environment.time_ns(),
                session,
                request.form,
                queue,
                ident,
                None,
                mq,
            )
        )
        session.busy += 1

    def publish_frame(self, socket: "Socket", data: bytes) -> bool:
        """Publish the message of a frame. False: the general path must handle the frame."""
        pub = fast_publish.read(data, socket.sender)
        if pub is None:
            return False
        mq, payload, fields, ident, body, ack = pub
        try:
            queue = self._find(mq)
            if queue is None or queue.topic != mq:
                return False
            name = queue.topic if ack else None
            self._send((mq, payload, fields, NO_TIMES, environment.time_ns(), socket, FLAT, queue, ident, body, name))
        except BusError:
            return False  # the general path reports it
        self._counters.requests["pub"] += 1
        socket.form = FLAT
        socket.busy += 1
        return True

    def _send(self, row: Row) -> None:
        """Send a message. The row ends with its client, the form of the request, the queue, and id and body in JSON.

        Its last object is the name of the queue in the answer; without it the client gets only errors. Without a body
        the message is not cached for subscribers.
        """
        if not self._begin(self, row):
            task = asyncio.get_running_loop().create_task(self._send_later(row))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_later(self, row: Row) -> None:
        """Send a message when the bus has room for it and a connection."""
        try:
            await self._begin_later(self, row)
        except BusError as error:
            self._refuse(row, error)

    def stored(self, batch: InFlight, begin: int, end: int, position: Position) -> None:
        """Answer the clients of stored messages."""
        broker, stream, offset = position.broker, position.stream, position.offset
        put = self._recent.put
        for _, _, _, _, _, session, form, queue, ident, body, mq in batch.items[begin:end]:
            session.busy -= 1
            if stream != queue.stream:  # the queue was removed at the same moment
                refusal = Refused(NOT_FOUND, f"MQ({mq or queue.topic}) Not Found")
                session.refuse(form, _decode(ident), *status_of(refusal))
            elif mq is not None:
                session.acked(form, ident, queue, mq)
            if body is not None:
                put((broker, stream, offset), fast_publish.tail(session.sent_by, ident, offset - queue.base, body))
            offset += 1
            session.relieved()

    def refused(self, batch: InFlight, index: int, error: BusError) -> None:
        """Answer the client of a refused message."""
        self._refuse(batch.items[index], error)

    def _refuse(self, row: Row, error: BusError) -> None:
        session, form, _, ident = row[5:9]
        session.busy -= 1
        session.refuse(form, _decode(ident), *status_of(error))
        session.relieved()
