"""The names and sizes that the trial and its clients agree on."""

from typing import Final

STREAM: Final = "orders"
CHANNEL: Final = "billing"
WINDOW: Final = 4
"""Less than a publisher sends at a time: consumers of the same node come first, and those of other nodes are to have something to do, too."""
WORK: Final = 0.01
"""Seconds that a consumer takes for a message."""
PAUSE: Final = 0.04
"""Seconds between the publishes of one publisher: the faults are looked at, not the rate."""
