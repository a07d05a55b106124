"""The verbs of a bus for channels: consume one, make, change, list and remove them."""

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, overload

import msgspec

from busway._core import check_pattern, check_topic
from busway.backoff import Backoff, Delay, backoff_of
from busway.client.channels.channel import MAX_PROCESSING, Channel
from busway.client.channels.dead_letters import LAST, DeadLetters, Progress, Since
from busway.client.channels.positions import Start, info_of, start_of
from busway.client.connection.core import Core
from busway.client.connection.sender import Sender
from busway.client.streams.reader import ask
from busway.client.subscriptions.inbox import Handler
from busway.client.typed.protocol import Kind, kind_for
from busway.client.typed_wrappers.channel import Delivered, TypedChannel, handling, reading
from busway.common.checks import check_callable, check_type
from busway.common.durations import Duration, seconds
from busway.dead_letters import DeadLetter, Redrive
from busway.errors import InvalidRule
from busway.fields import Where, compile_where
from busway.streams import ChannelInfo, check_name

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

SETTINGS: Final = (
    "lease",
    "max_deliveries",
    "dead_letter",
    "topic",
    "where",
    "exclusive",
    "delete_on_leave",
    "paused",
    "backoff",
    "order_by",
)


class ChannelOptions(TypedDict, total=False):
    """The keyword arguments of channel(), beside the handler."""

    window: int
    create: bool
    start: Start | None
    lease: Duration | None
    max_deliveries: int | None
    dead_letter: str | None
    topic: str | None
    where: Where | None
    exclusive: bool | None
    delete_on_leave: bool | None
    paused: bool | None
    backoff: Backoff | Sequence[Delay] | Delay | None
    order_by: str | None
    concurrency: int
    max_processing: Duration | None


class ChannelVerbs:
    """What a bus does with channels."""

    _core: Core
    _sender: Sender
    _drain: float

    @overload
    def channel(
        self, stream: str, name: str, *, handler: Handler | None = None, **options: "Unpack[ChannelOptions]"
    ) -> Channel: ...

    @overload
    def channel(
        self,
        protocol: type[T],
        stream: str,
        name: str,
        /,
        *,
        handler: Callable[[Delivered[T]], object] | None = None,
        **options: "Unpack[ChannelOptions]",
    ) -> TypedChannel[T]: ...

    def channel(
        self,
        stream: str | type[Any],
        name: str,
        channel: str | None = None,
        *,
        window: int = 64,
        create: bool = True,
        start: Start | None = None,
        lease: Duration | None = None,
        max_deliveries: int | None = None,
        dead_letter: str | None = None,
        topic: str | None = None,
        where: Where | None = None,
        exclusive: bool | None = None,
        delete_on_leave: bool | None = None,
        paused: bool | None = None,
        backoff: Backoff | Sequence[Delay] | Delay | None = None,
        order_by: str | None = None,
        handler: Callable[[Any], object] | None = None,
        concurrency: int = 1,
        max_processing: Duration | None = MAX_PROCESSING,
    ) -> Channel | TypedChannel[Any]:
        """Consume a channel: messages of a stream that all its consumers share, each to be acknowledged.

        ::

            async with bus.channel("orders", "billing", window=64) as jobs:
                async for message in jobs:
                    await message.ack()

        A channel that is not there is made, unless `create` is False; it begins at `start` (first, new, an offset, a position,
        a time, a length of time back). Settings that are given are those of the channel from then on, for all; without them
        it has the ones it had, or: what is not acknowledged within a `lease` of 30 s (0: no end) is handed out again, after 5
        `max_deliveries` (0: no limit) it goes to the topic `dead_letter` ("dead/{stream}/{channel}"; "": nowhere). A message
        that failed is redelivered after the delays of `backoff`: a list such as ["1s", "5s", "30s"] whose last delay repeats,
        a busway.Backoff, or [] to redeliver at once. With `order_by`, which is "topic" or the name of a field, messages with
        the same topic or the same value are delivered one after the other, also to several consumers. `topic` and `where`
        choose messages, an `exclusive` channel has one consumer, with `delete_on_leave` it goes with the last one.

        At most `window` messages are in flight to this consumer; with 0 it gets only what it takes. A `handler` is called with
        each message, which is acknowledged when that returns and given back when that raises.

        The leases of the messages that this consumer holds are extended by themselves until they are acknowledged or given
        back. A message that is worked on for longer than `max_processing` (1 h; None: no limit; 0: nothing is extended) is
        reported, and redelivered when its lease ends.

        `channel(Order, "orders", "billing")` gives the typed messages of a protocol: those on topics below its prefix, or on the
        `topic` below the prefix. A payload that does not fit the type becomes a dead letter at once.
        """
        check_callable("handler", handler)
        kind, stream, name = kind_and_names(stream, name, channel)
        read = None
        if kind is not None:
            read = reading(kind, Delivered)
            topic = kind.channel_topic(topic)
            handler = None if handler is None else handling(read, handler)
        settings = _checked(
            lease=lease,
            max_deliveries=max_deliveries,
            dead_letter=dead_letter,
            topic=topic,
            where=where,
            exclusive=exclusive,
            delete_on_leave=delete_on_leave,
            paused=paused,
            backoff=backoff,
            order_by=order_by,
        )
        made = Channel(
            self._core,
            check_name("stream", stream),
            check_name("channel", name),
            call=self._ask_channel,
            window=window,
            create=bool(create),
            start=start_of(start, stream),
            settings=settings,
            handler=handler,
            concurrency=concurrency,
            drain=self._drain,
            max_processing=max_processing,
            letters=DeadLetters(self._core, self._sender),
        )
        return made if read is None else TypedChannel(made, read)

    async def create_channel(
        self, stream: str, name: str, *, start: Start | None = None, **settings: Any
    ) -> ChannelInfo:
        """Make a channel without consuming it, with the settings that channel() has; one that is there gets them."""
        return await self._manage_channel(
            "create", stream, name, start=start_of(start, stream), settings=_wire(settings)
        )

    async def update_channel(self, stream: str, name: str, **settings: Any) -> ChannelInfo:
        """Change settings of a channel; the others stay."""
        return await self._manage_channel("update", stream, name, settings=_wire(settings))

    async def seek_channel(self, stream: str, name: str, start: Start) -> int:
        """Put a channel to another place, for all its consumers, as seek() of a channel does; the offset."""
        question = {**_named(stream, name), "start": start_of(start, stream)}
        offset: int = (await self._ask_channel("$bus/channel/seek", question))["offset"]
        return offset

    async def dead_letters(
        self,
        stream: str,
        channel: str,
        *,
        last: int | None = LAST,
        topic: str = "**",
        reason: str | None = None,
        since: Since | None = None,
        redriven: bool = False,
    ) -> list[DeadLetter]:
        """The last dead letters of a channel, in the order in which they died; None: all.

        `topic` is a pattern for the topic of the message, `reason` a part of the reason or of the exception's type, `since` a time or a
        length of time back. Letters that were sent back are left out, unless `redriven` asks for them.
        """
        return await DeadLetters(self._core, self._sender).listed(
            stream, channel, last=last, topic=topic, reason=reason, since=since, redriven=redriven
        )

    async def redrive_channel(
        self,
        stream: str,
        channel: str,
        letters: DeadLetter | str | Iterable[DeadLetter | str] | None = None,
        *,
        topic: str = "**",
        reason: str | None = None,
        since: Since | None = None,
        progress: Progress | None = None,
    ) -> Redrive:
        """Send dead letters back to the channel, each once: these, or all that are chosen as by dead_letters().

        Their messages are delivered again as if for the first time, before new ones. It may be interrupted and repeated: a
        letter that was sent back is never sent back again. `progress` is called with what was done so far.
        """
        return await DeadLetters(self._core, self._sender).redrive(
            stream, channel, letters, topic=topic, reason=reason, since=since, progress=progress
        )

    async def remove_channel(self, stream: str, name: str) -> ChannelInfo:
        """Remove a channel; what it was. The messages stay in the stream; its consumers get an error."""
        return await self._manage_channel("remove", stream, name)

    async def channel_info(self, stream: str, name: str) -> ChannelInfo:
        """One channel: its settings and figures, over all nodes of a cluster and of each."""
        answer = await self._ask_channel("$bus/channel/list", _named(stream, name))
        return info_of(answer["channels"][0])

    async def channels(self, stream: str) -> list[ChannelInfo]:
        """The channels of a stream, by name; with sums over all nodes of a cluster."""
        answer = await self._ask_channel("$bus/channel/list", {"stream": check_name("stream", stream)})
        return sorted((info_of(one) for one in answer["channels"]), key=lambda one: one.name)

    async def _manage_channel(self, verb: str, stream: str, name: str, **more: Any) -> ChannelInfo:
        return info_of(await self._ask_channel(f"$bus/channel/{verb}", {**_named(stream, name), **more}))

    async def _ask_channel(self, topic: str, question: dict[str, Any]) -> Any:
        return (await ask(self._sender, topic, question)).json()


def kind_and_names(first: str | type[Any], second: str, third: str | None) -> tuple[Kind[Any] | None, str, str]:
    """The protocol, if there is one, the stream and the channel that channel() is given."""
    if third is None and not isinstance(first, type):
        return None, first, second  # the names are checked where they are used
    if third is None or isinstance(first, str):
        raise TypeError("channel() takes a stream and a channel, or a protocol, a stream and a channel")
    return kind_for(first), second, third


def _named(stream: str, name: str) -> dict[str, Any]:
    return {"stream": check_name("stream", stream), "channel": check_name("channel", name)}


def _wire(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as JSON has them."""
    checked = _checked(**settings)
    if "where" in checked:
        checked["where"] = base64.b64encode(checked["where"]).decode()
    return checked


def _checked(**settings: Any) -> dict[str, Any]:
    """Those that are given, as the broker understands them."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in SETTINGS:
            raise TypeError(f"a channel has no setting {key!r}; there are {', '.join(SETTINGS)}")
        if value is None:
            continue
        if key == "lease":
            found[key] = 0.0 if value == 0 else seconds(key, value)
        elif key == "max_deliveries":
            if type(value) is not int or value < 0:
                raise ValueError(f"max_deliveries must be a whole number, 0 for no limit, but is {value!r}")
            found[key] = value
        elif key == "backoff":
            found[key] = msgspec.to_builtins(backoff_of(value))
        elif key == "order_by":
            check_type(key, value, str, "'topic', the name of a field, or '' for no order")
            found[key] = value
        elif key == "dead_letter":
            check_type(key, value, str, "a topic")
            if value:
                check_topic(value.replace("{stream}", "s").replace("{channel}", "c"), wildcards=False)
            found[key] = value
        elif key == "topic":
            found[key] = check_pattern(value)
        elif key == "where":
            rules = compile_where(value)
            if rules.local:
                reason = (
                    "a channel's rules are asked by the broker, which can't call a function: write busway.expr(...)"
                )
                raise InvalidRule(reason)
            found[key] = rules.wire
        else:
            found[key] = bool(value)
    return found
