"""Progress bar on stderr for verbs that send many messages."""

from typing import Self

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from busway.cli.common import terminal


class Rate(ProgressColumn):
    """A column with the messages per second."""

    def render(self, task: Task) -> Text:
        elapsed = task.elapsed or 0.0
        return Text(f"{task.fields['messages'] / elapsed:,.0f}/s" if elapsed > 0 else "")


class Sending:
    """Counts sent messages, of `total` if it is known. Draws only if `shown` and stderr is a terminal."""

    def __init__(self, total: int | None, *, shown: bool) -> None:
        self._progress = Progress(
            TextColumn("sending"),
            BarColumn(),
            TextColumn(
                "{task.fields[messages]:,} messages" if total is None else f"{{task.fields[messages]:,}} of {total:,}"
            ),
            Rate(),
            TimeRemainingColumn(),
            console=terminal.notes,
            disable=not (shown and terminal.notes.is_terminal),
            transient=True,
        )
        self._task = self._progress.add_task("", total=total, messages=0)
        self.sent = 0

    def add(self, messages: int) -> None:
        self.sent += messages
        self._progress.update(self._task, completed=self.sent, messages=self.sent)

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
