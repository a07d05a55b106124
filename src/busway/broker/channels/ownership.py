"""Who hands out of channels: this broker of its own, unless a mirror may do so; and of those of a broker that is gone, if it is its mirror."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from busway.broker.channels.driver import ChannelDriver, ProgressLog
from busway.broker.channels.journal import heard
from busway.broker.channels.state.progress import ChannelConfig, States
from busway.broker.streams.stream import Stream
from busway.errors import Code, Rejected

if TYPE_CHECKING:
    from busway.broker.channels.manager import Channels

_AWAY: Final = "its own broker hands it out again"


class Ownership:
    """The ownership of the channels of one broker."""

    def __init__(self, channels: "Channels") -> None:
        self._channels = channels
        self._adopted: dict[tuple[str, str], Stream] = {}
        self.suspended = False
        """Another broker may hand out of the channels of this one."""
        self.is_sure: Callable[[str], bool] = lambda _: True
        """Whether nobody else can have begun meanwhile to hand out of what is this broker's own, or of what it has of the one with this guid."""

    # Of its own.

    def suspend(self) -> None:
        """Hand out nothing of this broker's own."""
        self.suspended = True
        for driver in self._own():
            driver.suspend()

    def unsuspend(self) -> None:
        """Hand out again."""
        self.suspended = False
        for driver in self._own():
            if not driver.stream.held:
                driver.unsuspend()

    def hold(self, stream: Stream, *, yes: bool) -> None:
        """Whether nothing of one stream is handed out, for what its channels did may come back."""
        if stream.held is yes:
            return
        stream.held = yes
        for driver in list(self._channels.channels.get(stream.number, {}).values()):
            if yes:
                driver.suspend()
            elif not self.suspended:
                driver.unsuspend()

    def settle(self, stream: Stream) -> None:
        """What the stream has is all that it gets back of its end: channels that were further go there."""
        if stream.unsettled:
            stream.unsettled = False
            for driver in list(self._channels.channels.get(stream.number, {}).values()):
                driver.do(driver.machine.end_confirmed(stream.log.next, driver.now))

    def recall(self, stream: Stream, states: States, *, lost: bool) -> int:
        """What another broker knows of the channels of a stream, and this one has lost: `lost`: all of it, or only the last. How many it knows better.

        While nothing is handed out. What lies behind the end of the stream is lost with that.
        """
        delivering = self._channels
        if (channels := delivering.channels.get(stream.number)) is None:
            return 0
        count = 0
        for name, state in states.items():
            state.cut(stream.log.next)
            if (driver := channels.get(name)) is not None:
                machine = driver.machine
                before = machine.epoch, machine.cursor, machine.floor
                driver.do((machine.recover if lost else machine.absorb)(state, driver.now))
                count += before != (machine.epoch, machine.cursor, machine.floor)
            else:
                state.config = state.config or ChannelConfig()
                delivering.noted[stream.number].write(list(state.entries())).add_done_callback(heard)
                delivering.wait_for_somebody(delivering.open(stream, state, whole=False))
                count += 1
        return count

    def absorb(
        self, stream: Stream, states: States, made: Iterable[str], gone: Iterable[str], since: int = 0
    ) -> "list[asyncio.Future[None]]":
        """What became of the channels of a stream while another broker handed out; some were made there, some removed. What to wait for until that is noted.

        `since`: when that broker began, as epochs are. What was made here later is none of those that it removed.
        """
        delivering = self._channels
        channels = delivering.channels.get(stream.number)
        if channels is None:
            return []
        told: list[asyncio.Future[None] | None]
        over = [channels[name] for name in gone if name in channels]
        told = [delivering.forget_channel(one) for one in over if not since or one.machine.epoch < since]
        for name, state in states.items():
            if (driver := channels.get(name)) is not None:
                machine = driver.machine
                # If it was made there it was made here, too, by who did not know of that.
                take_in = machine.unite if name in made else machine.absorb
                told.append(driver.do(take_in(state, driver.now)))
            elif name in made:
                state.config = state.config or ChannelConfig()
                told.append(delivering.noted[stream.number].write(list(state.entries())))
                delivering.wait_for_somebody(delivering.open(stream, state))
        return [one for one in told if one is not None]

    # Of others.

    def get(self, guid: str, name: str) -> Stream:
        if (stream := self._adopted.get((guid, name))) is None:
            raise Rejected(f"nobody here hands out of the stream {name!r} of {guid}", code=Code.NO_STREAM)
        return stream

    def found(self, guid: str, stream: str, channel: str | None) -> list[ChannelDriver]:
        """One channel of such a stream, or all."""
        channels = self._channels.channels.get(self.get(guid, stream).number, {})
        if channel is not None and channel not in channels:
            raise Rejected(f"the stream {stream!r} has no channel {channel!r}", code=Code.NO_CHANNEL)
        return list(channels.values()) if channel is None else [channels[channel]]

    def adopt(self, guid: str, stream: Stream, notes: ProgressLog, states: States) -> None:
        """Hand out of the copy of a stream, whose channels stand there."""
        delivering = self._channels
        self._adopted[guid, stream.name] = stream
        delivering.noted[stream.number] = notes
        delivering.channels[stream.number] = {}
        for state in states.values():
            state.config = state.config or ChannelConfig()
            delivering.wait_for_somebody(delivering.open(stream, state))

    def release(self, guid: str) -> None:
        """Do so no longer, of all streams of that broker."""
        delivering = self._channels
        for key in [key for key in self._adopted if key[0] == guid]:
            stream = self._adopted.pop(key)
            for driver in list(delivering.channels.pop(stream.number, {}).values()):
                delivering.end(driver, Code.NO_STREAM, _AWAY)
            delivering.noted.pop(stream.number, None)

    def _own(self) -> list[ChannelDriver]:
        every = (driver for channels in self._channels.channels.values() for driver in channels.values())
        return [driver for driver in every if not driver.stream.copied]
