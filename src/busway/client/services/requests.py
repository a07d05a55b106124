"""The verbs of a Bus that wait for an answer: push, and requests to one service or to all willing shared services.

The Bus inherits RequestVerbs.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypedDict, TypeVar, Unpack, overload

from busway._core import Message
from busway.client.connection.core import Core
from busway.client.connection.sender import PUSH, REQUEST, Sender, limits, scope_flags
from busway.client.services.gather import Gathering
from busway.client.typed.protocol import Declares, Received, outgoing, receive_reply, reply_codec
from busway.common.checks import check_timeout
from busway.common.durations import Duration
from busway.fields import Fields
from busway.message import Replies
from busway.settings import Scope, check_scope

Plain: TypeAlias = (
    bytes | bytearray | memoryview | str | int | float | list[Any] | tuple[Any, ...] | dict[str, Any] | None
)
"""Types of payloads that are not protocol values. The reply to such a request is a Message."""

R = TypeVar("R")


class RequestOptions(TypedDict, total=False):
    """The keyword arguments of requests."""

    fields: Fields | None
    timeout: Duration | None
    each: Duration | None
    scope: Scope


class RequestVerbs:
    """The verbs of a Bus that wait for an answer."""

    _core: Core
    _sender: Sender

    async def push(
        self,
        topic: str,
        payload: object = b"",
        *,
        fields: Fields | None = None,
        timeout: Duration | None = 5.0,
        scope: Scope = "global",
    ) -> None:
        """Deliver a message to exactly one consumer. Raises NoConsumers if there is none.

        In a cluster consumers at the same node are preferred. `scope` limits it to "local" or "remote" ones.
        """
        timeout = check_timeout("timeout", timeout)
        scope_code = check_scope(scope)
        packed = self._core.pack(fields)
        if type(payload) is not bytes and type(payload) is not str:
            topic, payload = outgoing(topic, payload)
        await self._sender.ask(PUSH, topic, payload, timeout, each=scope_code, fields=packed)

    @overload
    async def request(self, topic: str, payload: Plain = b"", **options: Unpack[RequestOptions]) -> Message: ...

    @overload
    async def request(self, topic: str, payload: Declares[Any, R], **options: Unpack[RequestOptions]) -> R: ...

    @overload
    async def request(self, topic: str, payload: object, *, reply: type[R], **options: Unpack[RequestOptions]) -> R: ...

    @overload
    async def request(self, topic: str, payload: object, **options: Unpack[RequestOptions]) -> Any: ...

    async def request(
        self,
        topic: str,
        payload: object = b"",
        *,
        reply: Any = None,
        fields: Fields | None = None,
        timeout: Duration | None = 5.0,
        each: Duration | None = None,
        scope: Scope = "global",
    ) -> Any:
        """Send a request to the service of a topic and return its reply.

        The reply is a Message, for a typed request a value of the reply type of its protocol, and with `reply` a
        value of that type.

        The first willing one of several shared services answers. If it fails, or takes longer than `each` seconds, the
        broker tries the next one. If a service sends several replies, the last one is returned. Raises NoResponders,
        ServiceGone, HandlerError with the handler's text, or Timeout.

        In a cluster services at the same node are preferred. `scope` limits it to "local" or "remote" ones.
        """
        if type(timeout) is not float:
            timeout = check_timeout("timeout", timeout)
        aux, most = limits(timeout, each)
        flags = 0 if scope == "global" else scope_flags(scope)
        packed = self._core.pack(fields)
        if reply is None and (type(payload) is bytes or type(payload) is str):
            return await self._sender.ask(
                REQUEST, topic, payload, timeout, flags=flags, aux=aux, each=most, fields=packed
            )
        codec = reply_codec(payload, reply)
        topic, data = outgoing(topic, payload)
        answer = await self._sender.ask(REQUEST, topic, data, timeout, flags=flags, aux=aux, each=most, fields=packed)
        return answer if codec is None else codec.decode(topic, answer.payload)

    @overload
    async def request_all(
        self, topic: str, payload: Plain = b"", **options: Unpack[RequestOptions]
    ) -> Replies[Message]: ...

    @overload
    async def request_all(
        self, topic: str, payload: Declares[Any, R], **options: Unpack[RequestOptions]
    ) -> Replies[Received[R]]: ...

    @overload
    async def request_all(
        self, topic: str, payload: object, *, reply: type[R], **options: Unpack[RequestOptions]
    ) -> Replies[Received[R]]: ...

    @overload
    async def request_all(self, topic: str, payload: object, **options: Unpack[RequestOptions]) -> Replies[Any]: ...

    async def request_all(
        self,
        topic: str,
        payload: object = b"",
        *,
        reply: Any = None,
        fields: Fields | None = None,
        timeout: Duration | None = 5.0,
        each: Duration | None = None,
        scope: Scope = "global",
    ) -> Replies[Any]:
        """Send a request to all willing shared services and return their replies, with the failures in `failed`.

        A service that has not replied at the timeout has failed. Raises NoResponders if no service is willing, and
        Timeout if no service has answered at all. The replies to a typed request are Received, with the reply as
        their value.
        """
        asked: Gathering[Any] = self.request_many(
            topic, payload, reply=reply, fields=fields, timeout=timeout, each=each, scope=scope
        )
        return await asked.all()

    @overload
    def request_many(
        self, topic: str, payload: Plain = b"", **options: Unpack[RequestOptions]
    ) -> Gathering[Message]: ...

    @overload
    def request_many(
        self, topic: str, payload: Declares[Any, R], **options: Unpack[RequestOptions]
    ) -> Gathering[Received[R]]: ...

    @overload
    def request_many(
        self, topic: str, payload: object, *, reply: type[R], **options: Unpack[RequestOptions]
    ) -> Gathering[Received[R]]: ...

    @overload
    def request_many(self, topic: str, payload: object, **options: Unpack[RequestOptions]) -> Gathering[Any]: ...

    def request_many(
        self,
        topic: str,
        payload: object = b"",
        *,
        reply: Any = None,
        fields: Fields | None = None,
        timeout: Duration | None = 5.0,
        each: Duration | None = None,
        scope: Scope = "global",
    ) -> Gathering[Any]:
        """As request_all(), but an async iterator that yields each reply when it arrives.

        ::

            async for reply in bus.request_many("status"):
                print(reply.sender, reply.text)

        A reply with `last` is the last one. Leaving the loop cancels the request.
        """
        codec = reply_codec(payload, reply)  # raises if the protocol has no reply type
        read: Callable[[Message], object] = _identity if codec is None else receive_reply(codec)
        topic, data = outgoing(topic, payload)
        packed = self._core.pack(fields)
        return Gathering(self._core, topic, data, packed, read, timeout=timeout, each=each, scope=scope)


def _identity(message: Message) -> Message:
    return message
