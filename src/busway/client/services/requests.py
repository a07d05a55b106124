"""The verbs of a bus that are answered: push, and requests with one reply or with those of all who are willing."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar, overload

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
"""Payloads that are no protocol values, so that the reply to them is a Message."""

if TYPE_CHECKING:
    from typing_extensions import Unpack

R = TypeVar("R")


class RequestOptions(TypedDict, total=False):
    """The keyword arguments of requests."""

    fields: Fields | None
    timeout: Duration | None
    each: Duration | None
    scope: Scope


class RequestVerbs:
    """What a bus asks others."""

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
        """Hand a message to exactly one consumer; NoConsumers if nobody takes it.

        In a cluster clients of the same node come first; `scope` is for "local" or "remote" ones alone.
        """
        timeout = check_timeout("timeout", timeout)
        far = check_scope(scope)
        packed = self._core.pack(fields)
        if type(payload) is not bytes and type(payload) is not str:
            topic, payload = outgoing(topic, payload)
        await self._sender.ask(PUSH, topic, payload, timeout, each=far, fields=packed)

    @overload
    async def request(self, topic: str, payload: Plain = b"", **options: "Unpack[RequestOptions]") -> Message: ...

    @overload
    async def request(self, topic: str, payload: Declares[Any, R], **options: "Unpack[RequestOptions]") -> R: ...

    @overload
    async def request(
        self, topic: str, payload: object, *, reply: type[R], **options: "Unpack[RequestOptions]"
    ) -> R: ...

    @overload
    async def request(self, topic: str, payload: object, **options: "Unpack[RequestOptions]") -> Any: ...

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
        """Ask the service of a topic and return its reply: a Message, or for a typed request what its protocol says.

        With `reply` it is a value of that type, which a type checker knows, too.

        Of several shared services the first willing one answers; one that fails, or takes longer than `each` seconds, is
        followed by the next. Of several replies this is the last. Raises NoResponders, ServiceGone, HandlerError with
        the handler's text, or Timeout.

        In a cluster services of the same node come first, then those of the others; `scope` is for "local" or "remote" ones
        alone.
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
        self, topic: str, payload: Plain = b"", **options: "Unpack[RequestOptions]"
    ) -> Replies[Message]: ...

    @overload
    async def request_all(
        self, topic: str, payload: Declares[Any, R], **options: "Unpack[RequestOptions]"
    ) -> Replies[Received[R]]: ...

    @overload
    async def request_all(
        self, topic: str, payload: object, *, reply: type[R], **options: "Unpack[RequestOptions]"
    ) -> Replies[Received[R]]: ...

    @overload
    async def request_all(self, topic: str, payload: object, **options: "Unpack[RequestOptions]") -> Replies[Any]: ...

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
        """The replies of all shared services that are willing; `failed` of the list tells of those that gave none.

        When the timeout is over, those that have not replied have failed. Raises NoResponders if nobody is willing, and
        Timeout if nobody was heard of. Replies to a typed request are Received, with the reply as their value.
        """
        asked: Gathering[Any] = self.request_many(
            topic, payload, reply=reply, fields=fields, timeout=timeout, each=each, scope=scope
        )
        return await asked.all()

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
        """As request_all(), but an async iterator that gives each reply as it comes.

        ::

            async for reply in bus.request_many("status"):
                print(reply.sender, reply.text)

        A reply with `last` is known to be the last one. Leaving the loop cancels the request.
        """
        codec = reply_codec(payload, reply)  # a protocol that has none is found here
        read: Callable[[Message], object] = _itself if codec is None else receive_reply(codec)
        topic, data = outgoing(topic, payload)
        packed = self._core.pack(fields)
        return Gathering(self._core, topic, data, packed, read, timeout=timeout, each=each, scope=scope)


def _itself(message: Message) -> Message:
    return message
