"""The rule for a disk that runs full: below a floor of free space the broker takes no new messages into streams on that disk. A machine.

Once below the floor, the disk has to have a little more free space than that before messages are taken again, so that the state does not change
with every message that is removed.
"""

from typing import Any, Final

from busway.settings import MiB

_SHARE: Final = 0.02
_MOST: Final = 256 * MiB
_MARGIN: Final = 1.05


class DiskSpace:
    """The free space of one disk against its floor. `floor` None: 2 % of the disk, at most 256 MiB; 0: there is none."""

    def __init__(self, floor: int | None) -> None:
        self._given = floor
        self.floor = floor or 0
        self.free = 0
        self.low = False
        """Whether new messages are refused."""
        self.times = 0
        """How often the free space fell below the floor."""

    def look(self, free: int, size: int) -> bool:
        """Take note of the free space and the size of the disk. True: `low` has changed."""
        self.free = free
        self.floor = min(int(size * _SHARE), _MOST) if self._given is None else self._given
        low = free < (self.floor * _MARGIN if self.low else self.floor)
        if low is self.low:
            return False
        self.low = low
        self.times += low
        return True

    def refusal(self) -> str | None:
        """Why new messages are refused; None: they are taken."""
        if not self.low:
            return None
        return (
            f"the broker's disk has {shown(self.free)} free, less than the {shown(self.floor)} it keeps free (min_free_disk); "
            "publish again when there is space"
        )

    def figures(self) -> dict[str, Any]:
        return {"free": self.free, "floor": self.floor, "low": self.low, "times": self.times}


def shown(size: int) -> str:
    """Bytes for people, in a whole number of MiB where that says enough."""
    return f"{size // MiB} MiB" if size >= 10 * MiB else f"{size / MiB:.1f} MiB"
