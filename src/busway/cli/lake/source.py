"""Message selection of `busway lake`: the flags of streams, topics and times, and the table that they select."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

from busway.cli.common import completion, flags, values
from busway.cli.lake.job import Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PANEL: Final = "Which messages"


def _flag(*names: str, help: str, metavar: str, **more: Any) -> Any:  # noqa: A002 - typer's own word
    return typer.Option(*names, help=help, metavar=metavar, show_default=False, **more, rich_help_panel=_PANEL)


Streams = Annotated[
    list[str] | None,
    _flag(
        "--stream",
        "-s",
        help="Only messages of this stream; repeatable.",
        metavar="STREAM",
        parser=values.stream_name,
        autocompletion=completion.streams,
    ),
]
Topics = Annotated[
    list[str] | None,
    _flag(
        "--topic",
        help="Only messages of this topic or pattern; repeatable: orders/**",
        metavar="PATTERN",
        parser=values.pattern,
        autocompletion=completion.topics,
    ),
]
Since = Annotated[
    str | None,
    _flag(
        "--since",
        help="Only messages stored at this time or later: 2026-01-31T12:00, or 1h for an hour back.",
        metavar="TIME",
    ),
]
Until = Annotated[str | None, _flag("--until", help="Only messages stored before this time.", metavar="TIME")]


@dataclass(frozen=True, slots=True)
class Selection:
    """The messages that the flags of a verb select."""

    streams: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None

    @classmethod
    def of(
        cls, streams: Sequence[str] | None, topics: Sequence[str] | None, since: str | None, until: str | None
    ) -> Self:
        """Make a selection from flags. Raises BadParameter."""
        from busway._core import check_pattern
        from busway.errors import InvalidPattern, InvalidTopic

        begin, end = (
            None if one is None else _moment(name, one) for name, one in (("--since", since), ("--until", until))
        )
        try:
            patterns = tuple(check_pattern(one) for one in topics or ())
        except (InvalidPattern, InvalidTopic) as error:
            raise typer.BadParameter(f"--topic: {error}") from None
        return cls(tuple(streams or ()), patterns, begin, end)

    def table(self, spark: "SparkSession", job: Job, columns: Sequence[str]) -> "DataFrame":
        """Return the selected rows of the bus or folder, of the archive, or of both if both are given."""
        if job.lake:
            from busway.spark.lake.table import table

            return table(
                spark,
                job.lake,
                streams=self.streams,
                topics=self.topics or ("**",),
                columns=columns,
                since=self.since,
                until=self.until,
                options=job.options if job.has_source else {},
            )
        options = {**job.options, "columns": ",".join(columns)}
        for name, several in (("streams", self.streams), ("topics", self.topics)):
            if several:
                options[name] = json.dumps(several)
        for name, time in (("startingTimestamp", self.since), ("endingTimestamp", self.until)):
            if time is not None:
                options[name] = time.isoformat()
        return spark.read.format("busway").options(**options).load()


def _moment(name: str, text: str) -> datetime:
    def read() -> datetime:
        found = values.since(text) if text[:4].isdigit() and "-" in text else None
        if isinstance(found, datetime):
            return found
        return datetime.now(UTC) - timedelta(seconds=values.duration(text))

    try:
        return flags.checked(read)
    except (typer.BadParameter, OverflowError):
        raise typer.BadParameter(
            f"{name}: {text!r} is not a time: write 2026-01-31T12:00, or 1h for an hour back"
        ) from None
