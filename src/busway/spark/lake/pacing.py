"""When a replayed message is due: at the speed it had, so many times faster, at a rate, or at once. A value: it has no clock."""

from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """`speed`: 1 is that of the original, 10 ten times as fast. `rate`: messages a second. Neither: as fast as it goes."""

    speed: float | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.speed is not None and self.rate is not None:
            raise ValueError("give a speed or a rate, not both")
        for name, value in (("speed", self.speed), ("rate", self.rate)):
            if value is not None and not (value > 0 and isfinite(value)):
                raise ValueError(f"the {name} must be above zero, but is {value!r}")

    @property
    def paced(self) -> bool:
        return self.speed is not None or self.rate is not None

    def due(self, since_first: float, before: int) -> float:
        """Seconds after the first one: of one that was so many seconds behind it, with so many before it."""
        if self.speed is not None:
            return max(since_first, 0.0) / self.speed
        return 0.0 if self.rate is None else before / self.rate

    def until(self, times: list[float], before: int, passed: float) -> int:
        """How many of these that follow each other are due when so much time has passed."""
        if not self.paced:
            return len(times)
        for place, one in enumerate(times):
            if self.due(one, before + place) > passed:
                return place
        return len(times)
