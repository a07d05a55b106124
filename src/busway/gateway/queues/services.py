"""Services that clients of the JSON door offer, as services of the bus: a request to one becomes a message of a queue. A driver.

A client offers the topic of a queue by subscribing to the channel of the same name, and those of URLs with `bind`.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import msgspec

from busway._core import Message
from busway.client.bus import Bus
from busway.client.services.service import Service
from busway.errors import BusError, HandlerError
from busway.gateway.json import bodies
from busway.gateway.json.config import Http
from busway.gateway.json.envelope import BOUND, FLAT, HEADERS, UNSET, Ident, Request
from busway.gateway.json.session import Session
from busway.gateway.json.statuses import BAD, FAILED, GONE, OK, Refused
from busway.gateway.queues.queues import Queue, Queues
from busway.topic import check_topic, is_reserved

if TYPE_CHECKING:
    from busway.gateway.http.commands import Commands

log = logging.getLogger("busway.gateway")


class Bound(NamedTuple):
    """A URL that somebody serves: its queue, and what is left of the path that was asked for."""

    mq: str
    url: str
    rest: str


class DoorService:
    """One topic that is served for clients of the door."""

    __slots__ = ("mq", "owners", "service", "url")

    def __init__(self, mq: str, url: str | None) -> None:
        self.mq = mq
        self.url = url
        self.owners: set[str] = set()
        self.service: Service | None = None


class Waiting(Session):
    """The session that requests of the bus are asked by: their answers are routed to it."""

    def __init__(self, commands: "Commands") -> None:
        super().__init__(commands)
        self.form = HEADERS
        self.answers: dict[Ident, asyncio.Future[tuple[int, Any]]] = {}
        self.streams: dict[Ident, str] = {}
        """The queues that they wait for."""

    def answer(self, form: int, ident: Ident, status: int, body: Any, head: dict[str, Any] | None = None) -> None:
        del form, head
        if (future := self.answers.get(ident)) is not None and not future.done():
            future.set_result((status, body))


class DoorServices:
    """All that clients of the door serve."""

    def __init__(self, bus: Bus, queues: Queues, settings: Http, commands: "Commands") -> None:
        self._bus = bus
        self._queues = queues
        self._settings = settings
        self._commands = commands
        self._offers: dict[str, DoorService] = {}
        self._changing = asyncio.Lock()
        self._waiting = Waiting(commands)

    def listed(self) -> list[tuple[str, str, str | None]]:
        """Topic, queue and URL of each."""
        return [(topic, offer.mq, offer.url) for topic, offer in sorted(self._offers.items())]

    async def served(self, queue: Queue) -> bool:
        """Whether a client of the door subscribes to a queue, or somebody else consumes it."""
        taps = self._commands.taps
        if taps.subscribers(queue.stream):
            return True
        await taps.drained(queue.stream)  # those that wait for nobody are no consumers
        return bool(await self._queues.consumers(queue))

    def match(self, path: str) -> Bound | None:
        """The longest bound URL that a path begins with."""
        path = "/" + path.strip("/")
        end = len(path)
        while end > 0:
            offer = self._offers.get(path[1:end])
            if offer is not None and offer.url is not None:
                return Bound(offer.mq, offer.url, path[end + 1 :])
            end = path.rfind("/", 0, end)
        return None

    @property
    def root(self) -> Bound | None:
        """The service that has bound the URL `/`, if there is one."""
        offer = self._offers.get("")
        return None if offer is None or offer.url is None else Bound(offer.mq, offer.url, "")

    def serves(self, topic: str) -> bool:
        """Whether a client of the door serves a topic."""
        return topic in self._offers

    async def add(self, session: Session, topic: str, mq: str, url: str | None = None) -> None:
        """A client serves a topic."""
        async with self._changing:
            if session.gone:
                return
            if (offer := self._offers.get(topic)) is not None:
                offer.owners.add(session.id)
                offer.url = offer.url or url
                return
            offer = DoorService(mq, url)
            service = self._bus.serve(topic, lambda message: self._asked(offer, message), shared=True)
            try:
                await service.start()
            except BusError as error:  # somebody serves it alone: the queue is one all the same
                log.info("the topic %r of the queue %r is not served for the bus: %s", topic, mq, error)
                if url is not None:
                    raise
                return
            offer.service = service
            offer.owners.add(session.id)
            self._offers[topic] = offer

    @staticmethod
    def urls(mq: str, body: Any) -> dict[str, str]:
        """Topics and URLs that a client is to serve with a queue. Raises Refused."""
        if type(body) is not list:
            raise Refused(BAD, "bind command, missing body: a list of {url, mq}")
        topics: dict[str, str] = {}
        for entry in body:
            if type(entry) is not dict or type(entry.get("url")) is not str:
                raise Refused(BAD, "bind command, each entry of the body has a url")
            if entry.get("mq", mq) != mq:
                raise Refused(FAILED, f"bind command, url {entry['url']} is of another mq")
            topic = check_topic(entry["url"].strip("/"), wildcards=False)
            if is_reserved(topic):
                raise Refused(BAD, f"bind command, {entry['url']} can't be bound")
            topics[topic] = entry["url"]
        return topics

    async def bind(self, session: Session, mq: str, topics: dict[str, str], *, clear: bool) -> None:
        """A client serves these URLs with a queue."""
        if clear:
            for topic in session.bound.pop(mq, []):
                if topic not in topics:
                    await self._drop(session, topic)
        for topic, url in topics.items():
            await self.add(session, topic, mq, url)
            session.bound.setdefault(mq, []).append(topic)

    async def leave(self, session: Session) -> None:
        """A client is gone, and so is what only it has served."""
        for topic in [topic for topic, offer in self._offers.items() if session.id in offer.owners]:
            await self._drop(session, topic)

    async def _drop(self, session: Session, topic: str) -> None:
        async with self._changing:
            offer = self._offers.get(topic)
            if offer is None:
                return
            offer.owners.discard(session.id)
            if not offer.owners:
                del self._offers[topic]
                if offer.service is not None:
                    await offer.service.close()

    async def _asked(self, offer: DoorService, message: Message) -> bytes | str:
        """A client of the bus asks: a message for the queue, and its answer."""
        queue = self._queues.find(offer.mq)
        if queue is None or queue.topic is None:
            raise HandlerError(f"MQ({offer.mq}) Not Found")
        if not await self.served(queue):  # its last client is just leaving
            raise HandlerError(f"MQ({offer.mq}) has no service at the moment")
        request = _request(offer, message)
        ident = request.ident = str(uuid4())
        future = self._waiting.answers[ident] = asyncio.get_running_loop().create_future()
        self._waiting.streams[ident] = queue.stream
        try:
            await self._commands.publish(queue, request, self._waiting.id)
            async with asyncio.timeout(self._settings.call):
                status, body = await future
        except TimeoutError:
            raise HandlerError(f"no answer of the service within {self._settings.call:g} s") from None
        finally:
            del self._waiting.answers[ident], self._waiting.streams[ident]
        payload = bodies.payload_of(body)[0]
        if status != OK:
            raise HandlerError(payload if isinstance(payload, str) else payload.decode(), code=str(status))
        return payload

    def pending(self, stream: str) -> bool:
        """Whether a client of the bus waits for an answer of a queue's service."""
        return stream in self._waiting.streams.values()

    def unserved(self, stream: str, text: str) -> None:
        """The service of a queue has gone: who waits for it is told."""
        for ident in [ident for ident, one in self._waiting.streams.items() if one == stream]:
            self._waiting.answer(HEADERS, ident, GONE, text)

    async def close(self) -> None:
        for offer in self._offers.values():
            if offer.service is not None:
                await offer.service.close()
        self._offers.clear()


def _request(offer: DoorService, message: Message) -> Request:
    """A request of the bus in the form that the service knows: by URL, or by module and method."""
    body, coded = bodies.body_of(message.payload)
    if coded:
        body = message.payload
    elif type(body) is msgspec.Raw:
        body = msgspec.json.decode(body)
    if offer.url is not None:
        request = Request(HEADERS, {BOUND: offer.url}, body, {})
        url, verb = message.fields.get("url"), message.fields.get("verb")  # if a door of another node has sent it
        request.url = url if type(url) is str else offer.url
        request.verb = verb if type(verb) is str else None
        return request
    if type(body) is dict and type(body.get("method")) is str:
        return Request(FLAT, body, UNSET, {})
    return Request(FLAT, {}, body, {})
