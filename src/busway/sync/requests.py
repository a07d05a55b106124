"""The blocking bus's verbs for pushes, requests and retained messages.

A driver: each verb runs that of the asyncio Bus in the loop thread. sync/bus.py inherits it.
"""

from typing import TYPE_CHECKING, Any, TypeVar, overload

from busway.client import bus as asynchronous
from busway.client.durable.publisher import Lasting
from busway.client.services.gather import Gathering as AsyncGathering
from busway.client.services.requests import Plain, RequestOptions
from busway.client.typed.protocol import Declares, Received
from busway.common.durations import Duration
from busway.fields import Fields, Where
from busway.message import Message, Replies
from busway.settings import Scope
from busway.sync.portal import Portal
from busway.sync.subscription import Gathering, signed_as

if TYPE_CHECKING:
    from typing_extensions import Unpack

R = TypeVar("R")


class RequestVerbs:
    """The bus's verbs push, request, request_all and request_many, and those of retained messages."""

    _portal: Portal
    _inner: asynchronous.Bus

    def push(
        self,
        topic: str,
        payload: object = b"",
        *,
        fields: Fields | None = None,
        timeout: Duration | None = 5.0,
        scope: Scope = "global",
    ) -> None:
        """Deliver a message to exactly one consumer. Raises NoConsumers if none takes it."""
        self._portal.call(lambda: self._inner.push(topic, payload, fields=fields, timeout=timeout, scope=scope))

    @overload
    def request(self, topic: str, payload: Plain = b"", **options: "Unpack[RequestOptions]") -> Message: ...
    @overload
    def request(self, topic: str, payload: Declares[Any, R], **options: "Unpack[RequestOptions]") -> R: ...
    @overload
    def request(self, topic: str, payload: object, *, reply: type[R], **options: "Unpack[RequestOptions]") -> R: ...
    @overload
    def request(self, topic: str, payload: object, **options: "Unpack[RequestOptions]") -> Any: ...
    @signed_as(asynchronous.Bus.request)
    def request(self, topic: str, payload: object = b"", **options: Any) -> Any:
        """Send a request to the service of a topic and return its reply."""
        ask: Any = self._inner.request
        return self._portal.call(lambda: ask(topic, payload, **options))

    @overload
    def request_all(
        self, topic: str, payload: Plain = b"", **options: "Unpack[RequestOptions]"
    ) -> Replies[Message]: ...
    @overload
    def request_all(
        self, topic: str, payload: Declares[Any, R], **options: "Unpack[RequestOptions]"
    ) -> Replies[Received[R]]: ...
    @overload
    def request_all(
        self, topic: str, payload: object, *, reply: type[R], **options: "Unpack[RequestOptions]"
    ) -> Replies[Received[R]]: ...
    @overload
    def request_all(self, topic: str, payload: object, **options: "Unpack[RequestOptions]") -> Replies[Any]: ...
    @signed_as(asynchronous.Bus.request_all)
    def request_all(self, topic: str, payload: object = b"", **options: Any) -> Replies[Any]:
        """The replies of all willing shared services; `failed` of the list has the services without a good reply."""
        ask: Any = self._inner.request_all
        return self._portal.call(lambda: ask(topic, payload, **options))

    @overload
    def request_many(
        self, topic: str, payload: Plain = b"", **options: "Unpack[RequestOptions]"
    ) -> Gathering[Message]: ...
    @overload
    def request_many(
        self, topic: str, payload: Declares[Any, R], **options: "Unpack[RequestOptions]"
    ) -> Gathering[Received[R]]: ...
    @overload
    def request_many(
        self, topic: str, payload: object, *, reply: type[R], **options: "Unpack[RequestOptions]"
    ) -> Gathering[Received[R]]: ...
    @overload
    def request_many(self, topic: str, payload: object, **options: "Unpack[RequestOptions]") -> Gathering[Any]: ...
    @signed_as(asynchronous.Bus.request_many)
    def request_many(self, topic: str, payload: object = b"", **options: Any) -> Gathering[Any]:
        """Like request_all(), but an iterator over the replies as they arrive."""
        ask: Any = self._inner.request_many

        async def requested() -> AsyncGathering[Any]:
            gathering: AsyncGathering[Any] = ask(topic, payload, **options)
            return gathering

        return Gathering(self._portal, self._portal.call(requested))

    # Retained messages.

    def post(
        self, topic: str, payload: object = b"", *, fields: Fields | None = None, timeout: Lasting | None = None
    ) -> None:
        """Publish a message and retain it for later subscribers as long as this client is connected."""
        self._portal.call(lambda: self._inner.post(topic, payload, fields=fields, timeout=timeout))

    def unpost(self, topic: str, *, fields: Fields | None = None, timeout: Lasting | None = None) -> bool:
        """Withdraw the post with this topic and these fields. Returns whether there was one."""
        return self._portal.call(lambda: self._inner.unpost(topic, fields=fields, timeout=timeout))

    def pin(
        self, topic: str, payload: object = b"", *, fields: Fields | None = None, timeout: Lasting | None = None
    ) -> None:
        """Publish a message and retain it for later subscribers until it is withdrawn."""
        self._portal.call(lambda: self._inner.pin(topic, payload, fields=fields, timeout=timeout))

    def unpin(self, topic: str, *, fields: Fields | None = None, timeout: Lasting | None = None) -> bool:
        """Withdraw the pin under this client's name with this topic and these fields. Returns whether there was one."""
        return self._portal.call(lambda: self._inner.unpin(topic, fields=fields, timeout=timeout))

    def kept(self, pattern: str = "**", *, where: Where | None = None) -> list[Message]:
        """The retained posts and pins that match, in the order of their arrival."""
        return self._portal.call(lambda: self._inner.kept(pattern, where=where))
