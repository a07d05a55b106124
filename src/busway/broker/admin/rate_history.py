"""The history of the broker's figures: one sample a second, for ten minutes. A machine; `admin.rates` feeds it.

A figure is a number with a name, such as `messages_received` or `channel/orders/billing/lag`. Counters are stored as
they are; a reader computes rates from the differences.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

SAMPLES: Final = 600


@dataclass(slots=True)
class _Series:
    """The values of one figure in consecutive samples."""

    first: int
    """The number of the sample of its first value."""
    values: "array[float]"

    @property
    def end(self) -> int:
        return self.first + len(self.values)


class RateHistory:
    """The last samples of all figures. Samples have consecutive numbers from 0."""

    def __init__(self, most: int = SAMPLES) -> None:
        self._most = most
        self._times = _Series(0, array("d"))
        self._series: dict[str, _Series] = {}

    def add(self, time: float, figures: Mapping[str, float]) -> None:
        """Add a sample. A figure that is missing in it ends, and begins anew if it returns."""
        number = self._times.end
        self._append(self._times, time)
        for name, value in figures.items():
            series = self._series.get(name)
            if series is None or series.end != number:
                series = self._series[name] = _Series(number, array("d"))
            self._append(series, value)
        oldest = self._times.first
        for name in [name for name, series in self._series.items() if series.end <= oldest]:
            del self._series[name]

    def _append(self, series: _Series, value: float) -> None:
        series.values.append(value)
        if len(series.values) > self._most:
            del series.values[0]
            series.first += 1

    def names(self) -> list[str]:
        """The names of all figures."""
        return sorted(self._series)

    def since(self, number: int, names: Iterable[str]) -> dict[str, Any]:
        """The samples from a number on: the first number, their times, and the values of each figure.

        A value is None in samples without the figure. Figures that do not exist are left out.
        """
        first = min(max(number, self._times.first), self._times.end)
        found = {name: series for name in names if (series := self._series.get(name)) is not None}
        return {
            "first": first,
            "times": self._times.values[first - self._times.first :].tolist(),
            "figures": {name: self._values(series, first) for name, series in found.items()},
        }

    def _values(self, series: _Series, first: int) -> list[float | None]:
        end = self._times.end
        before: list[float | None] = [None] * (min(max(series.first, first), end) - first)
        values = [_short(value) for value in series.values[max(first - series.first, 0) :]]
        return before + values + [None] * (end - first - len(before) - len(values))


def _short(value: float) -> float:
    """A whole number as int, which is shorter as JSON."""
    return int(value) if value.is_integer() else round(value, 3)
