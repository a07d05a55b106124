"""Entries for the journal of channels, and the states that they make."""

from busway.broker.channels.state.progress import (
    ChannelConfig,
    Configured,
    Created,
    Deleted,
    Delivered,
    Done,
    Entry,
    Sought,
    States,
)

CONFIG = ChannelConfig(lease=5.0, topic="orders/*")


def story(channels: int = 3, length: int = 8) -> list[Entry]:
    """Something of each kind."""
    entries: list[Entry] = []
    for n in range(channels):
        name = f"c{n}"
        entries.append(Created(name, 1, n, CONFIG))
        entries += [Done(name, 1, n + at, ((n + at + 5, 2), (n + at + 20, 1))) for at in range(length)]
        entries.append(Delivered(name, 1, 2, ((n + 40, 3),)))
        entries.append(Configured(name, ChannelConfig(paused=True)))
    entries += [Sought("c1", 2, 1), Done("c1", 2, 3, ((7, 1),)), Deleted("c2")]
    return entries


def shown(states: States) -> dict[str, tuple]:
    return {
        name: (one.config, one.epoch, one.floor, list(one.done), list(one.deliveries)) for name, one in states.items()
    }
