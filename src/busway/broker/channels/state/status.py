"""The status that all parts of a channel's machine share: settings, epoch and counters."""

from dataclasses import dataclass

from busway.broker.channels.state.progress import ChannelConfig, ChannelState


@dataclass(slots=True)
class Status:
    """Settings, epoch and counters of one channel; each part of the machine reads and updates them."""

    name: str
    config: ChannelConfig
    epoch: int
    """Changes whenever the channel moves to another position."""
    recorded: int
    """The floor in the journal."""
    lost: int
    """Messages that the stream removed before they were acknowledged."""
    lost_reported: int
    """The number of lost messages that were reported to consumers."""
    first: int = 0
    """The first offset that the stream still has."""
    safe: int = 0
    """Messages below this offset may be delivered."""
    suspended: bool = False
    """Whether another broker delivers from the channel."""
    moved: bool = False
    """Whether a consumer or an operator has moved the channel since it was opened."""
    redelivered: int = 0
    dead: int = 0
    late: int = 0
    refused: int = 0

    @classmethod
    def of(cls, state: ChannelState) -> "Status":
        assert state.config is not None, "a channel is opened with its settings"
        return cls(state.channel, state.config, state.epoch, state.floor, state.lost, state.told)

    @property
    def idle(self) -> bool:
        """Whether nothing may be delivered now."""
        return self.config.paused or self.suspended

    def counts(self, deliveries: int) -> bool:
        """Whether this number of deliveries must survive a crash."""
        return deliveries > 1 or 0 < self.config.max_deliveries <= deliveries
