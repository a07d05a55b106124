"""The ownership of channels: which channels this broker may deliver from.

These are its own, unless a mirror may have been promoted in its place, and those of a broker that it replaces. The
cluster calls it.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from busway.broker.channels.driver import ChannelDriver, ProgressStore
from busway.broker.channels.progress_log import ProgressLog, ignore_failure
from busway.broker.channels.state.progress import ChannelConfig, States
from busway.broker.streams.stream import Stream
from busway.errors import Code, Rejected

if TYPE_CHECKING:
    from busway.broker.channels.manager import Channels

_AWAY: Final = "another broker delivers from it"
"""Why a channel ends here for its consumers."""


class Ownership:
    """The ownership of the channels of one broker."""

    def __init__(self, channels: "Channels") -> None:
        self._channels = channels
        self._adopted: dict[tuple[str, str], Stream] = {}
        self.suspended = False
        """Whether another broker may deliver from the channels of this one."""

    # Channels of this broker.

    def suspend(self) -> None:
        """Suspend all channels of this broker."""
        self.suspended = True
        for driver in self._own():
            driver.suspend()

    def unsuspend(self) -> None:
        """Deliver from them again."""
        self.suspended = False
        for driver in self._own():
            if not driver.stream.held:
                driver.unsuspend()

    def hold(self, stream: Stream) -> None:
        """Suspend the channels of one stream while lost messages or progress may come back from a mirror."""
        if stream.held:
            return
        stream.held = True
        if isinstance(journal := self._channels.journals.get(stream.number), ProgressLog):
            journal.rest()
        for driver in self._of(stream):
            driver.suspend()

    def unhold(self, stream: Stream, removed: Callable[[str, str], int]) -> int:
        """The stream and its progress get nothing more back: continue with what there is.

        Channels that were further than the stream is are rewound. `removed` returns when a channel was removed, or 0.
        Returns how many channels have other progress than before.
        """
        if stream.end_unconfirmed:
            stream.end_unconfirmed = False
            for driver in self._of(stream):
                driver.do(driver.machine.end_confirmed(stream.log.next, driver.now))
        if not stream.held:
            return 0
        count = 0
        if isinstance(journal := self._channels.journals.get(stream.number), ProgressLog):
            if (restored := journal.restored()) is not None:
                count = self._restore(stream, *restored, removed)
            journal.wake()
        stream.held = False
        for driver in () if self.suspended else self._of(stream):
            driver.unsuspend()
        return count

    def _restore(
        self, stream: Stream, states: States, known: Collection[str], removed: Callable[[str, str], int]
    ) -> int:
        """Apply restored progress. `known`: the channels that were there before. Returns how many channels changed."""
        channels, count = self._channels.channels[stream.number], 0
        for name, state in states.items():
            state.cut(stream.log.next)
            if (driver := channels.get(name)) is not None:
                machine = driver.machine
                before = machine.epoch, machine.cursor, machine.floor
                driver.do((machine.absorb if name in known else machine.recover)(state, driver.now))
                count += before != (machine.epoch, machine.cursor, machine.floor)
            elif name not in known and removed(stream.name, name) <= state.epoch:
                state.config = state.config or ChannelConfig()
                written = self._channels.journals[stream.number].write(list(state.entries()))
                written.add_done_callback(ignore_failure)
                self._channels.await_consumer(self._channels.open(stream, state, whole=False))
                count += 1
        for name in [name for name in known if name in channels and name not in states]:
            self._channels.forget_channel(channels[name]).add_done_callback(ignore_failure)
            count += 1
        return count

    def _of(self, stream: Stream) -> list[ChannelDriver]:
        return list(self._channels.channels.get(stream.number, {}).values())

    def refuse(self, reason: str) -> None:
        """Refuse all acknowledgements that wait, because another broker may deliver the messages again."""
        for journal in self._channels.journals.values():
            if isinstance(journal, ProgressLog):
                journal.refuse(reason)

    # Channels of other brokers.

    def get(self, guid: str, name: str) -> Stream:
        """The replica of a stream that this broker owns by a promotion."""
        if (stream := self._adopted.get((guid, name))) is None:
            reason = f"this broker does not deliver from the stream {name!r} of {guid}; ask that broker"
            raise Rejected(reason, code=Code.NO_STREAM)
        return stream

    def found(self, guid: str, stream: str, channel: str | None) -> list[ChannelDriver]:
        """One channel of a stream that this broker owns by a promotion, or all."""
        channels = self._channels.channels.get(self.get(guid, stream).number, {})
        if channel is not None and channel not in channels:
            raise Rejected(f"the stream {stream!r} has no channel {channel!r}", code=Code.NO_CHANNEL)
        return list(channels.values()) if channel is None else [channels[channel]]

    def adopt(self, guid: str, stream: Stream, journal: ProgressStore, states: States) -> None:
        """Deliver from this replica of a stream, with the progress that its channels have."""
        self._adopted[guid, stream.name] = stream
        self._channels.journals[stream.number] = journal
        self._channels.channels[stream.number] = {}
        for state in states.values():
            state.config = state.config or ChannelConfig()
            self._channels.await_consumer(self._channels.open(stream, state))

    def release(self, guid: str) -> None:
        """Deliver from the replicas of a broker no longer."""
        for name in [name for owner, name in self._adopted if owner == guid]:
            self.release_stream(guid, name)

    def release_stream(self, guid: str, name: str) -> None:
        """Deliver from one replica no longer."""
        if (stream := self._adopted.pop((guid, name), None)) is not None:
            for driver in list(self._channels.channels.pop(stream.number, {}).values()):
                self._channels.end(driver, Code.NO_STREAM, _AWAY)
            self._channels.journals.pop(stream.number, None)

    def remove(self, guid: str, stream: str, channel: str) -> None:
        """A channel was removed in the whole cluster: remove it from a replica."""
        replica = self._adopted.get((guid, stream))
        if replica is not None and (driver := self._channels.channels[replica.number].get(channel)) is not None:
            self._channels.forget_channel(driver).add_done_callback(ignore_failure)

    def _own(self) -> list[ChannelDriver]:
        every = (driver for channels in self._channels.channels.values() for driver in channels.values())
        return [driver for driver in every if not driver.stream.copied]
