"""A progress bar for what Spark does: it follows the tasks of the jobs at work, or what a verb tells it."""

import threading
from typing import TYPE_CHECKING, Any, Final, Self

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from busway.cli.common import terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVERY: Final = 0.2


class Bar:
    """On stderr, or nowhere. Use as a context; say() and reached() may be called from any thread."""

    def __init__(self, *, shown: bool) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=terminal.notes,
            disable=not shown,
            transient=True,
        )
        self._shown = shown
        self._task = self._progress.add_task("", total=None, figures="")
        self._told = False
        self._over = threading.Event()
        self._follower: threading.Thread | None = None

    def say(self, text: str) -> None:
        """What is being done now; how far that has come begins anew."""
        self._told = False
        self._progress.reset(self._task, description=text, total=None, figures="")

    def reached(self, done: float, total: float | None = None, figures: str = "") -> None:
        """How far it has come, by the verb's own measure; until the next say() the tasks of Spark don't matter."""
        self._told = True
        self._progress.update(self._task, completed=done, total=total, figures=figures)

    def follow(self, spark: "SparkSession") -> None:
        """From now on show the tasks of this session's jobs."""
        context = getattr(spark, "_sc", None)  # a session of Spark Connect has none
        self.say("")
        if not self._shown or context is None or self._follower is not None:
            return
        self._follower = threading.Thread(target=self._look, args=(context,), daemon=True, name="busway-progress")
        self._follower.start()

    def close(self) -> None:
        """Look at Spark no more."""
        self._over.set()
        if self._follower is not None:
            self._follower.join()
            self._follower = None

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._progress.stop()

    def _look(self, context: Any) -> None:
        tracker = context.statusTracker()
        while not self._over.wait(_EVERY):
            try:
                done, total = tasks(tracker)
            except Exception:  # noqa: BLE001 - Spark is gone; whoever works with it hears that, too
                return
            if total and not self._told:
                self._progress.update(self._task, completed=done, total=total, figures=f"{done}/{total} tasks")


def tasks(tracker: Any) -> tuple[int, int]:
    """Tasks done and tasks in all of the stages at work."""
    stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
    return sum(one.numCompletedTasks for one in stages), sum(one.numTasks for one in stages)
