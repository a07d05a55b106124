"""The verbs of a Bus for channels: consume, create, update, seek, list and remove them, and redrive their dead letters.

The Bus inherits ChannelVerbs.
"""

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypedDict, TypeVar, Unpack, overload

import msgspec

from busway._core import check_pattern, check_topic
from busway.backoff import Backoff, Delay, backoff_of
from busway.client.channels.channel import MAX_PROCESSING, Channel
from busway.client.channels.dead_letters import DeadLetters, ListOptions, RedriveOptions
from busway.client.channels.positions import Start, info_of, start_of
from busway.client.connection.core import Core
from busway.client.connection.sender import Sender
from busway.client.streams.reader import ask
from busway.client.subscriptions.inbox import Handler
from busway.client.typed.protocol import Kind, kind_for
from busway.client.typed_wrappers.channel import Delivered, TypedChannel, handling, reading
from busway.common.checks import check_callable, check_seconds, check_type
from busway.common.durations import Duration, seconds
from busway.common.options import takes_options
from busway.dead_letters import DeadLetter, Redrive
from busway.errors import InvalidRule
from busway.fields import Where, compile_where
from busway.streams import ChannelInfo, check_name

T = TypeVar("T")


class ChannelSettings(TypedDict, total=False):
    """The settings of a channel: the keyword arguments of create_channel() and update_channel()."""

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


class ChannelOptions(ChannelSettings, total=False):
    """The keyword arguments of channel(), without the handler."""

    window: int
    create: bool
    start: Start | None
    concurrency: int
    max_processing: Duration | None


class ChannelVerbs:
    """The verbs of a Bus for channels."""

    _core: Core
    _sender: Sender
    _drain: float

    @overload
    def channel(
        self, stream: str, name: str, *, handler: Handler | None = None, **options: Unpack[ChannelOptions]
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
        **options: Unpack[ChannelOptions],
    ) -> TypedChannel[T]: ...

    @takes_options()
    def channel(
        self,
        stream: str | type[Any],
        name: str,
        channel: str | None = None,
        *,
        window: int = 64,
        create: bool = True,
        start: Start | None = None,
        handler: Callable[[Any], object] | None = None,
        concurrency: int = 1,
        max_processing: Duration | None = MAX_PROCESSING,
        **settings: Unpack[ChannelSettings],
    ) -> Channel | TypedChannel[Any]:
        """Consume a channel: its consumers share messages of a stream, and acknowledge each.

        ::

            async with bus.channel("orders", "billing", window=64) as jobs:
                async for message in jobs:
                    await message.ack()

        A channel that does not exist is created, unless `create` is False. It begins at `start`: "first", "new", an
        offset, a position, a message, a time, or a length of time back. Given settings replace those of the channel,
        for all consumers. The defaults of a new channel: a message that is not acknowledged within a `lease` of 30 s
        (0: no end) is redelivered, and after 6 `max_deliveries` (0: no limit) it moves to the topic `dead_letter`
        ("dead/{stream}/{channel}"; "": none). A failed message is redelivered after the delays of `backoff`: a list
        such as ["1s", "5s", "30s"] whose last delay repeats, a busway.Backoff, or [] to redeliver at once. With
        `order_by`, which is "topic" or the name of a field, messages with the same topic or value are delivered one
        after the other, also to several consumers. `topic` and `where` select messages. An `exclusive` channel has
        one consumer. With `delete_on_leave` the channel is removed when its last consumer leaves.

        At most `window` messages are in flight to this consumer; with 0 it gets only those that it takes. A `handler`
        is called with each message: the message is acknowledged when it returns and redelivered when it raises.

        The client renews the leases of the messages that this consumer holds, until they are acknowledged or nacked.
        A message that is in work for longer than `max_processing` (1 h; None: no limit; 0: nothing is renewed) is
        reported, and redelivered when its lease ends. If all handlers are that late, or the program takes no message for
        that long, the messages that wait go to other consumers.

        `channel(Order, "orders", "billing")` delivers the typed messages of a protocol: those on topics below its
        prefix, or on the `topic` below the prefix. A message whose payload does not fit the type becomes a dead
        letter at once.
        """
        check_callable("handler", handler)
        kind, stream, name = kind_and_names(stream, name, channel)
        read = None
        if kind is not None:
            read = reading(kind, Delivered)
            settings["topic"] = kind.channel_topic(settings.get("topic"))
            handler = None if handler is None else handling(read, handler)
        made = Channel(
            self._core,
            check_name("stream", stream),
            check_name("channel", name),
            call=self._ask_channel,
            window=window,
            create=bool(create),
            start=start_of(start, stream),
            settings=_checked(**settings),
            handler=handler,
            concurrency=concurrency,
            drain=self._drain,
            max_processing=max_processing,
            letters=DeadLetters(self._core, self._sender),
        )
        return made if read is None else TypedChannel(made, read)

    @takes_options()
    async def create_channel(
        self, stream: str, name: str, *, start: Start | None = None, **settings: Unpack[ChannelSettings]
    ) -> ChannelInfo:
        """Create a channel without consuming it, or give an existing one these settings: those of channel()."""
        return await self._manage_channel(
            "create", stream, name, start=start_of(start, stream), settings=_wire(**settings)
        )

    @takes_options()
    async def update_channel(self, stream: str, name: str, **settings: Unpack[ChannelSettings]) -> ChannelInfo:
        """Change the given settings of a channel."""
        return await self._manage_channel("update", stream, name, settings=_wire(**settings))

    async def seek_channel(self, stream: str, name: str, start: Start) -> int:
        """Move a channel to another place, for all its consumers, as Channel.seek() does. Returns the offset."""
        question = {**_named(stream, name), "start": start_of(start, stream)}
        offset: int = (await self._ask_channel("$bus/channel/seek", question))["offset"]
        return offset

    @takes_options(DeadLetters.listed)
    async def dead_letters(self, stream: str, channel: str, **options: Unpack[ListOptions]) -> list[DeadLetter]:
        """The last dead letters of a channel, ordered by the time of their failure. With `last=None` all of them.

        `topic` is a pattern for the topic of the message, `reason` a part of the reason or of the exception's type,
        `since` a time or a length of time back. Letters that were redriven are included only with `redriven`.
        """
        return await DeadLetters(self._core, self._sender).listed(stream, channel, **options)

    @takes_options(DeadLetters.redrive)
    async def redrive_channel(
        self,
        stream: str,
        channel: str,
        letters: DeadLetter | str | Iterable[DeadLetter | str] | None = None,
        **options: Unpack[RedriveOptions],
    ) -> Redrive:
        """Redrive dead letters, each once: the given ones, or all that dead_letters() selects with the same arguments.

        The channel delivers their messages as if for the first time, before new ones. A redrive may be interrupted and
        repeated: the broker redrives each letter only once. `progress` is called with the counts so far.
        """
        return await DeadLetters(self._core, self._sender).redrive(stream, channel, letters, **options)

    async def remove_channel(self, stream: str, name: str) -> ChannelInfo:
        """Remove a channel and return its last state. The messages stay in the stream; its consumers get an error."""
        return await self._manage_channel("remove", stream, name)

    async def channel_info(self, stream: str, name: str) -> ChannelInfo:
        """The settings and figures of one channel, over all nodes of a cluster and of each."""
        answer = await self._ask_channel("$bus/channel/list", _named(stream, name))
        return info_of(answer["channels"][0])

    async def channels(self, stream: str) -> list[ChannelInfo]:
        """The channels of a stream, ordered by name, with sums over all nodes of a cluster."""
        answer = await self._ask_channel("$bus/channel/list", {"stream": check_name("stream", stream)})
        return sorted((info_of(channel) for channel in answer["channels"]), key=lambda info: info.name)

    async def _manage_channel(self, verb: str, stream: str, name: str, **more: Any) -> ChannelInfo:
        return info_of(await self._ask_channel(f"$bus/channel/{verb}", {**_named(stream, name), **more}))

    async def _ask_channel(self, topic: str, question: dict[str, Any]) -> Any:
        return (await ask(self._sender, topic, question)).json()


def kind_and_names(first: str | type[Any], second: str, third: str | None) -> tuple[Kind[Any] | None, str, str]:
    """The protocol or None, the stream and the channel, from the positional arguments of channel()."""
    if third is None and not isinstance(first, type):
        return None, first, second  # the names are checked where they are used
    if third is None or isinstance(first, str):
        raise TypeError("channel() takes a stream and a channel, or a protocol, a stream and a channel")
    return kind_for(first), second, third


def _named(stream: str, name: str) -> dict[str, Any]:
    return {"stream": check_name("stream", stream), "channel": check_name("channel", name)}


def _wire(**settings: Any) -> dict[str, Any]:
    """Checked settings, encoded for a JSON request."""
    checked = _checked(**settings)
    if "where" in checked:
        checked["where"] = base64.b64encode(checked["where"]).decode()
    return checked


def _checked(**settings: Any) -> dict[str, Any]:
    """The given settings, checked and encoded for the broker."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if value is None:
            continue
        if key == "lease":
            length = check_seconds(key, value)
            found[key] = seconds(key, length) if length else 0.0
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
                reason = "the broker checks a channel's rules, and can't call a function: write busway.expr(...)"
                raise InvalidRule(reason)
            found[key] = rules.wire
        else:
            found[key] = bool(value)
    return found
