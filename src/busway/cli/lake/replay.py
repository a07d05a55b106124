"""`busway lake replay`: stored messages back on to a bus."""

import re
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from busway.cli.common import flags, terminal, values
from busway.cli.lake.job import Ending, Job, spark_job
from busway.cli.lake.progress import Bar
from busway.cli.lake.source import Since, Streams, Topics, Until, Wanted

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
        typer.Option("--where", "-w", help="A condition in SQL: \"sender = 'feed' AND offset < 100\"", metavar="SQL"),
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
            help="1 keeps their distances in time, 10 is ten times as fast.",
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
    """Publish stored messages again, in their order, each exactly once however often this is started.

    busway lake replay --lake /srv/lake --topic 'orders/**' --to 'replayed/{topic}' --speed 10
    busway lake replay --path /var/lib/busway --onto tcp://127.0.0.1:7421 --name move
    """
    wanted = Wanted.of(stream, topic, since, until)
    if name is not None and not _NAME.fullmatch(name):
        raise typer.BadParameter("--name: letters, digits, _ . and - are fine")
    called = name or f"replay-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    file = state or Path(".busway") / "replay" / f"{called}.json"
    a_second = None if rate is None else _rate(rate)
    if speed is not None and (rate is not None or not speed > 0):
        raise typer.BadParameter("give --speed, above 0, or --rate: not both")
    where_to = _target(job, onto)
    source = Job(path=job.path, lake=job.lake) if job.path or job.lake else job

    def work(spark: "SparkSession", bar: Bar) -> None:
        from busway.spark.lake.replay import COLUMNS, replay

        bar.say(f"replay {called}: sorting")
        columns = COLUMNS if where is None else (*COLUMNS, "sequence", "id", "sender")
        rows = wanted.table(spark, source, columns)
        if where is not None:
            rows = rows.where(where)
        if name is None and not job.quiet:
            terminal.note(f"--name {called} goes on with this replay if it is stopped")

        def tell(done: int, total: int) -> None:
            if not done:
                bar.say(f"replay {called}")
            bar.reached(done, total, f"{done:,}/{total:,} messages")

        with Ending() as ending:
            done = replay(
                rows,
                url=where_to.pop("url"),
                options=where_to,
                name=called,
                state=file,
                to=to,
                speed=speed,
                rate=a_second,
                fresh=name is None,
                ended=ending.wait,
                tell=tell,
            )
        bar.close()
        if json:
            terminal.record({"name": done.name, "total": done.total, "done": done.done, "stored": done.stored})
        elif not job.quiet:
            rest = "" if done.finished else "; the same command goes on"
            terminal.note(f"{done.done} of {done.total} messages are replayed, {done.stored} of them now{rest}")

    job.run(work)


def _target(job: Job, onto: str | None) -> dict[str, str]:
    """Where they go, as options of the sink."""
    if onto is not None:
        job = Job(url=[onto], ca=job.ca, cert=job.cert, key=job.key).checked()
    made = Job(url=job.url, ca=job.ca, cert=job.cert, key=job.key).options
    if "," in made["url"]:
        raise typer.BadParameter("a replay goes to one bus: name it with --onto")
    return made


def _rate(text: str) -> float:
    found = _RATE.fullmatch(text.strip())
    count = found and flags.checked(lambda: values.count(found["count"]))
    if not found or not count:
        raise typer.BadParameter(f"--rate: {text!r} is no rate: write 1000/s or 50k/m")
    return count / _UNITS[found["unit"]]
