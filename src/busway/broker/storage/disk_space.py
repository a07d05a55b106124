"""The rule for a nearly full disk: below a floor of free space the broker refuses new messages for its streams.

This is a machine, driven by `disk_watch`. After the free space fell below the floor, it has to rise a little above it
before messages are accepted again, so that the state does not change with every removed message.
"""

from typing import Any, Final

from busway.settings import MiB

_SHARE: Final = 0.02
"""The default floor as a share of the disk."""
_MOST: Final = 256 * MiB
"""The highest default floor."""
_MARGIN: Final = 1.05
"""How far above the floor the free space has to rise before messages are accepted again."""


class DiskSpace:
    """The free space of one disk and its floor. `floor` None: 2 % of the disk, at most 256 MiB; 0: no floor."""

    def __init__(self, floor: int | None) -> None:
        self._given = floor
        self.floor = floor or 0
        self.free = 0
        self.low = False
        """Whether new messages are refused."""
        self.times = 0
        """How often the free space fell below the floor."""

    def look(self, free: int, size: int) -> bool:
        """Update the free space and the size of the disk. Returns true if `low` has changed."""
        self.free = free
        self.floor = min(int(size * _SHARE), _MOST) if self._given is None else self._given
        low = free < (self.floor * _MARGIN if self.low else self.floor)
        if low is self.low:
            return False
        self.low = low
        self.times += low
        return True

    def refusal(self) -> str | None:
        """Why new messages are refused; None: they are accepted."""
        if not self.low:
            return None
        return (
            f"the broker's disk has {shown(self.free)} free, less than the {shown(self.floor)} it keeps free "
            "(min_free_disk); publish again when there is space"
        )

    def figures(self) -> dict[str, Any]:
        return {"free": self.free, "floor": self.floor, "low": self.low, "times": self.times}


def shown(size: int) -> str:
    """A number of bytes as text, in whole MiB from 10 MiB on."""
    return f"{size // MiB} MiB" if size >= 10 * MiB else f"{size / MiB:.1f} MiB"
