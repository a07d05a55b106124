"""`busway lake replay`: publishes stored messages again, each exactly once. Called by busway.cli.app."""

import re
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from busway.cli.common import flags, terminal, values
from busway.cli.lake.job import Ending, Job, spark_job
from busway.cli.lake.progress import Bar
from busway.cli.lake.source import Selection, Since, Streams, Topics, Until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME = re.compile(r"[\w.-]{1,100}")
_RATE = re.compile(r"(?P<count>.+?)(?:/(?P<unit>s|m|h))?")
_UNITS = {None: 1, "s": 1, "m": 60, "h": 3600}


@spark_job
def lake_replay(
    job: Job,
    stream: Streams = None,
    topic: Topics = None,
    since: Since = None,
    until: Until = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            "-w",
            help="Condition in SQL that selects messages: \"sender = 'feed' AND offset < 100\"",
            metavar="SQL",
        ),
    ] = None,
    onto: Annotated[
        str | None,
        typer.Option(
            "--onto", help="Address of the bus to publish to.", metavar="ADDRESS", show_default="the one of --url"
        ),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="Topic of the replayed messages, such as replayed/{topic}; also {stream} and {broker}.",
            metavar="TOPIC",
            parser=values.topic_template,
        ),
    ] = "{topic}",
    speed: Annotated[
        float | None,
        typer.Option(
            "--speed",
            help="Speed relative to the original times: 1 is the original speed, 10 is ten times as fast.",
            show_default="as fast as it goes",
        ),
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", help="Rate of publishing: 1000/s, 50k/m.", metavar="N/s", show_default=False)
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Name of this replay; the same name continues where it stopped and stores nothing twice.",
            show_default="a new one",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state", help="File that records the progress.", metavar="FILE", show_default=".busway/replay/NAME.json"
        ),
    ] = None,
    json: flags.Json = False,
) -> None:
    """Publish stored messages again, in their order, each exactly once even if the command is repeated.

    busway lake replay --lake /srv/lake --topic 'orders/**' --to 'replayed/{topic}' --speed 10
    busway lake replay --path /var/lib/busway --onto tcp://127.0.0.1:7421 --name move
    """
    selection = Selection.of(stream, topic, since, until)
    if name is not None and not _NAME.fullmatch(name):
        raise typer.BadParameter(f"--name: {name!r} is not allowed: use 1 to 100 letters, digits, _ . and -")
    replay_name = name or f"replay-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    file = state or Path(".busway") / "replay" / f"{replay_name}.json"
    per_second = None if rate is None else _rate(rate)
    if speed is not None and (rate is not None or not speed > 0):
        raise typer.BadParameter("--speed must be above 0 and excludes --rate: give one of the two")
    target = _target(job, onto)
    source = Job(path=job.path, lake=job.lake) if job.path or job.lake else job

    def work(spark: "SparkSession", bar: Bar) -> None:
        from busway.spark.lake.replay import COLUMNS, replay

        bar.say(f"replay {replay_name}: sorting")
        columns = COLUMNS if where is None else (*COLUMNS, "sequence", "id", "sender")
        rows = selection.table(spark, source, columns)
        if where is not None:
            rows = rows.where(where)
        if name is None and not job.quiet:
            terminal.note(f"if this replay is stopped, --name {replay_name} resumes it")

        def report(done: int, total: int) -> None:
            if not done:
                bar.say(f"replay {replay_name}")
            bar.reached(done, total, f"{done:,}/{total:,} messages")

        with Ending() as ending:
            done = replay(
                rows,
                url=target.pop("url"),
                options=target,
                name=replay_name,
                state=file,
                to=to,
                speed=speed,
                rate=per_second,
                fresh=name is None,
                ended=ending.wait,
                tell=report,
            )
        bar.close()
        if json:
            terminal.record({"name": done.name, "total": done.total, "done": done.done, "stored": done.stored})
        elif not job.quiet:
            rest = "" if done.finished else "; the same command resumes the replay"
            terminal.note(f"{done.done} of {done.total} messages are replayed, {done.stored} of them in this run{rest}")

    job.run(work)


def _target(job: Job, onto: str | None) -> dict[str, str]:
    """Return the options of the sink for the target bus."""
    if onto is not None:
        job = Job(url=[onto], ca=job.ca, cert=job.cert, key=job.key).checked()
    made = Job(url=job.url, ca=job.ca, cert=job.cert, key=job.key).options
    if "," in made["url"]:
        raise typer.BadParameter(
            "a replay has one target, and --url has several addresses: give the target with --onto"
        )
    return made


def _rate(text: str) -> float:
    found = _RATE.fullmatch(text.strip())
    count = found and flags.checked(lambda: values.count(found["count"]))
    if not found or not count:
        raise typer.BadParameter(f"--rate: {text!r} is not a rate: write 1000/s or 50k/m")
    return count / _UNITS[found["unit"]]
