"""Upkeep of a lake: OPTIMIZE merges small files and VACUUM deletes old ones, both through delta-rs and without Spark.

The public functions are optimize() and vacuum(); the archive and the command line call them.
"""

import logging
import time
from collections.abc import Sequence
from typing import Final

from busway.common.durations import Duration, duration
from busway.spark.lake.coverage import LakeError
from busway.spark.lake.delta_table import SMALL, Lake, Optimized

log = logging.getLogger("busway.spark")

KEEP: Final = "7d"
"""Default time for which VACUUM keeps the files of older versions."""
_SAFE: Final = 3600.0
"""Seconds that a read or a round of an archive may take."""
_MANY: Final = 16
"""Number of small files of a stream and day from which a running archive merges them."""
_DAY: Final = 86_400.0


def optimize(lake: str, *, streams: Sequence[str] = (), below: int = SMALL) -> list[Optimized]:
    """Merge the files of a lake that are smaller than `below` bytes, by stream and day (OPTIMIZE).

    The old files stay for readers of older versions, until vacuum() deletes them. An archive may run meanwhile.
    """
    return Lake(lake).optimize(below=below, streams=streams)


def vacuum(lake: str, *, keep: Duration = KEEP, force: bool = False) -> list[str]:
    """Delete the files that no version of the last `keep` has (VACUUM). Returns their paths.

    Less than an hour needs `force`: it may delete the files of a read or of an archive that runs now.
    """
    seconds = duration("keep", keep, none=True)
    if seconds < _SAFE and not force:
        raise ValueError(
            f"keep must be an hour or more, but is {keep}: VACUUM would delete files of reads and archives that run now. If none "
            "runs, use force"
        )
    return Lake(lake).vacuum(seconds)


class Upkeep:
    """OPTIMIZE and VACUUM of a running archive. An error of them is logged and does not end the archive."""

    def __init__(self, lake: Lake, below: int | None, keep: float | None) -> None:
        self._lake = lake
        self._below = below
        self._keep = keep
        self._vacuumed = 0.0

    def run(self, vacuumed: float) -> None:
        """Merge small files where there are many, and once a day delete old ones. `vacuumed`: when this was done."""
        try:
            if self._below is not None:
                for done in self._lake.optimize(below=self._below, least=_MANY):
                    log.info("merged %d files of the stream %r of %s", done.before, done.stream, done.date)
            if self._keep is not None and time.time() - max(vacuumed, self._vacuumed) >= min(_DAY, self._keep):
                self._vacuumed = time.time()
                self._lake.vacuum(self._keep)
        except LakeError as error:
            log.warning("the files of the lake can't be merged or deleted now: %s", error)
