"""Services of clients of the JSON door: provides them as services of the bus, and turns requests into queue messages.

A client provides the topic of a queue when it subscribes to the channel of the same name, and the topics of URLs with
the command `bind`. `http/commands.py` and `calls.py` call this module. A driver.
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


class Binding(NamedTuple):
    """A bound URL: its queue, the URL, and the rest of the requested path after it."""

    mq: str
    url: str
    rest: str


class DoorService:
    """One topic that the door serves on the bus for its clients."""

    __slots__ = ("mq", "owners", "service", "url")

    def __init__(self, mq: str, url: str | None) -> None:
        self.mq = mq
        self.url = url
        self.owners: set[str] = set()
        """Ids of the sessions that provide it."""
        self.service: Service | None = None


class Requester(Session):
    """The session that sends requests of the bus to queues and receives their answers."""

    def __init__(self, commands: "Commands") -> None:
        super().__init__(commands)
        self.form = HEADERS
        self.answers: dict[Ident, asyncio.Future[tuple[int, Any]]] = {}
        self.streams: dict[Ident, str] = {}
        """The stream of the queue that must answer, by request."""

    def answer(self, form: int, ident: Ident, status: int, body: Any, head: dict[str, Any] | None = None) -> None:
        del form, head
        if (future := self.answers.get(ident)) is not None and not future.done():
            future.set_result((status, body))


class DoorServices:
    """All services of clients of the door, by topic."""

    def __init__(self, bus: Bus, queues: Queues, settings: Http, commands: "Commands") -> None:
        self._bus = bus
        self._queues = queues
        self._settings = settings
        self._commands = commands
        self._services: dict[str, DoorService] = {}
        self._changing = asyncio.Lock()
        self._requester = Requester(commands)

    def listed(self) -> list[tuple[str, str, str | None]]:
        """Topic, queue and URL of each service."""
        return [(topic, door_service.mq, door_service.url) for topic, door_service in sorted(self._services.items())]

    async def served(self, queue: Queue) -> bool:
        """Whether a queue has a consumer: a client of the door or a native one."""
        consumers = self._commands.consumers
        if consumers.subscribers(queue.stream):
            return True
        await consumers.close_unused(queue.stream)  # unused consumers of the door do not count
        return bool(await self._queues.consumers(queue))

    def match(self, path: str) -> Binding | None:
        """The longest bound URL that a path begins with."""
        path = "/" + path.strip("/")
        end = len(path)
        while end > 0:
            door_service = self._services.get(path[1:end])
            if door_service is not None and door_service.url is not None:
                return Binding(door_service.mq, door_service.url, path[end + 1 :])
            end = path.rfind("/", 0, end)
        return None

    @property
    def root(self) -> Binding | None:
        """The service that has bound the URL `/`; None if no client has."""
        door_service = self._services.get("")
        return (
            None if door_service is None or door_service.url is None else Binding(door_service.mq, door_service.url, "")
        )

    def serves(self, topic: str) -> bool:
        """Whether a client of the door serves a topic."""
        return topic in self._services

    async def add(self, session: Session, topic: str, mq: str, url: str | None = None) -> None:
        """Serve a topic for a client."""
        async with self._changing:
            if session.closed:
                return
            if (door_service := self._services.get(topic)) is not None:
                door_service.owners.add(session.id)
                door_service.url = door_service.url or url
                return
            door_service = DoorService(mq, url)
            service = self._bus.serve(topic, lambda message: self._request(door_service, message), shared=True)
            try:
                await service.start()
            except BusError as error:  # another client serves it exclusively; the queue works nevertheless
                log.info("the queue %r is not a service of the bus: its topic %r is refused: %s", mq, topic, error)
                if url is not None:
                    raise
                return
            door_service.service = service
            door_service.owners.add(session.id)
            self._services[topic] = door_service

    @staticmethod
    def urls(mq: str, body: Any) -> dict[str, str]:
        """Topics and URLs in the body of a `bind` for a queue. Raises Refused."""
        if type(body) is not list:
            raise Refused(BAD, "bind command, missing body: a list of {url, mq}")
        topics: dict[str, str] = {}
        for entry in body:
            if type(entry) is not dict or type(entry.get("url")) is not str:
                raise Refused(BAD, "bind command, each entry of the body must have a url")
            if entry.get("mq", mq) != mq:
                raise Refused(FAILED, f"bind command, url {entry['url']} names another mq")
            topic = check_topic(entry["url"].strip("/"), wildcards=False)
            if is_reserved(topic):
                raise Refused(BAD, f"bind command, {entry['url']} can't be bound: its topic belongs to the broker")
            topics[topic] = entry["url"]
        return topics

    async def bind(self, session: Session, mq: str, topics: dict[str, str], *, clear: bool) -> None:
        """Serve the topics of these URLs for a client, with a queue."""
        if clear:
            for topic in session.bound.pop(mq, []):
                if topic not in topics:
                    await self._drop(session, topic)
        for topic, url in topics.items():
            await self.add(session, topic, mq, url)
            session.bound.setdefault(mq, []).append(topic)

    async def leave(self, session: Session) -> None:
        """A client has disconnected: end the services that only it provided."""
        for topic in [topic for topic, door_service in self._services.items() if session.id in door_service.owners]:
            await self._drop(session, topic)

    async def _drop(self, session: Session, topic: str) -> None:
        async with self._changing:
            door_service = self._services.get(topic)
            if door_service is None:
                return
            door_service.owners.discard(session.id)
            if not door_service.owners:
                del self._services[topic]
                if door_service.service is not None:
                    await door_service.service.close()

    async def _request(self, door_service: DoorService, message: Message) -> bytes | str:
        """Publish a request of the bus to the queue, and return the answer."""
        queue = self._queues.find(door_service.mq)
        if queue is None or queue.topic is None:
            raise HandlerError(f"MQ({door_service.mq}) Not Found")
        if not await self.served(queue):  # its last client is disconnecting
            raise HandlerError(f"MQ({door_service.mq}) has no service now: no client subscribes to it")
        request = _door_request(door_service, message)
        ident = request.ident = str(uuid4())
        future = self._requester.answers[ident] = asyncio.get_running_loop().create_future()
        self._requester.streams[ident] = queue.stream
        try:
            await self._commands.publish(queue, request, self._requester.id)
            async with asyncio.timeout(self._settings.call):
                status, body = await future
        except TimeoutError:
            raise HandlerError(f"the service did not answer within {self._settings.call:g} s") from None
        finally:
            del self._requester.answers[ident], self._requester.streams[ident]
        payload = bodies.payload_of(body)[0]
        if status != OK:
            raise HandlerError(payload if isinstance(payload, str) else payload.decode(), code=str(status))
        return payload

    def pending(self, stream: str) -> bool:
        """Whether a request of the bus to the service of a queue is in flight."""
        return stream in self._requester.streams.values()

    def unserved(self, stream: str, text: str) -> None:
        """The service of a queue has disconnected: answer its requests in flight with an error."""
        for ident in [ident for ident, queue in self._requester.streams.items() if queue == stream]:
            self._requester.answer(HEADERS, ident, GONE, text)

    async def close(self) -> None:
        """End all services."""
        for door_service in self._services.values():
            if door_service.service is not None:
                await door_service.service.close()
        self._services.clear()


def _door_request(door_service: DoorService, message: Message) -> Request:
    """A request of the bus as a request of the door, in the form of the service: by URL, or by module and method."""
    body, coded = bodies.body_of(message.payload)
    if coded:
        body = message.payload
    elif type(body) is msgspec.Raw:
        body = msgspec.json.decode(body)
    if door_service.url is not None:
        request = Request(HEADERS, {BOUND: door_service.url}, body, {})
        url, verb = message.fields.get("url"), message.fields.get("verb")  # set by the door of another node
        request.url = url if type(url) is str else door_service.url
        request.verb = verb if type(verb) is str else None
        return request
    if type(body) is dict and type(body.get("method")) is str:
        return Request(FLAT, body, UNSET, {})
    return Request(FLAT, {}, body, {})
