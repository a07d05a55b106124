"""What the parts of a channel's machine know in common: its settings, where it stands, and its counters."""

from dataclasses import dataclass

from busway.broker.channels.state.progress import ChannelConfig, ChannelState


@dataclass(slots=True)
class Status:
    """Settings, epoch and counters of one channel; each part of the machine reads and updates them."""

    name: str
    config: ChannelConfig
    epoch: int
    """Changes whenever the channel moves to another position."""
    noted: int
    """The floor that the journal has."""
    lost: int
    """Messages that the stream removed before they were acknowledged."""
    lost_reported: int
    """How many of these consumers were told of."""
    first: int = 0
    """The first offset that the stream still has."""
    safe: int = 0
    """Messages below this offset may be delivered."""
    suspended: bool = False
    """Another broker delivers from the channel."""
    moved: bool = False
    """A consumer or operator moved it to another position since it was opened."""
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
