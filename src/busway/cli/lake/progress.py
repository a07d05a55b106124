"""Progress bar of `busway lake`: follows the tasks of Spark's running jobs, or the figures that a verb reports."""

import threading
from typing import TYPE_CHECKING, Any, Final, Self

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from busway.cli.common import terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVERY: Final = 0.2


class Bar:
    """A progress bar on stderr, drawn only if `shown`. Any thread may call say() and reached()."""

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
        self._reported = False
        self._over = threading.Event()
        self._follower: threading.Thread | None = None

    def say(self, text: str) -> None:
        """Show the current action, and start its progress at zero."""
        self._reported = False
        self._progress.reset(self._task, description=text, total=None, figures="")

    def reached(self, done: float, total: float | None = None, figures: str = "") -> None:
        """Show progress that the verb measured. Until the next say() the tasks of Spark are ignored."""
        self._reported = True
        self._progress.update(self._task, completed=done, total=total, figures=figures)

    def follow(self, spark: "SparkSession") -> None:
        """Start showing the tasks of this session's jobs."""
        context = getattr(spark, "_sc", None)  # a session of Spark Connect has no context
        self.say("")
        if not self._shown or context is None or self._follower is not None:
            return
        self._follower = threading.Thread(target=self._poll, args=(context,), daemon=True, name="busway-progress")
        self._follower.start()

    def close(self) -> None:
        """Stop following Spark."""
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

    def _poll(self, context: Any) -> None:
        tracker = context.statusTracker()
        while not self._over.wait(_EVERY):
            try:
                done, total = tasks(tracker)
            except Exception:  # noqa: BLE001 - Spark has ended; the verb gets the error, too
                return
            if total and not self._reported:
                self._progress.update(self._task, completed=done, total=total, figures=f"{done}/{total} tasks")


def tasks(tracker: Any) -> tuple[int, int]:
    """Return the finished tasks and all tasks of the active stages."""
    stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
