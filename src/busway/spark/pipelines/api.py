"""The functions source, sink and flow of `busway.spark.pipelines`. Pipeline files and the runner call them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from busway.spark.options import COLUMNS, read_options, write_options
from busway.spark.pipelines import sql_declarations

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FORMAT: Final = "busway"
_DEFAULTS: Final[ContextVar[Mapping[str, str]]] = ContextVar("busway.spark.pipelines.api.defaults")
"""The options of the bus while the runner loads a pipeline."""
_TLS: Final = ("ca", "cert", "key")
_BROKEN: Final = "_busway_broken"
_PARSED: Final = "_busway_parsed"
_REASON: Final = "reason"


@contextmanager
def defaults(options: Mapping[str, str]) -> Iterator[None]:
    """Set the bus (`url` or `path`, and certificates) for all sources and sinks without these options."""
    token = _DEFAULTS.set(options)
    try:
        yield
    finally:
        _DEFAULTS.reset(token)


def source(
    name: str, *, schema: str = "", watermark: str = "", form: str = FORMAT, rejected: str = "", **options: str
) -> None:
    """Declare a streaming view of messages. A flow reads it with `STREAM name` or `spark.readStream.table(name)`.

    `options` are the options of the source. With a `schema` payloads are JSON, and its columns replace the payload;
    messages that do not fit go to the table `<name>_rejected`, with the reason. `watermark` (`10 seconds`) is the
    largest delay of messages by their `time`.
    """
    from pyspark import pipelines as dp  # noqa: PLC0415 - heavy
    from pyspark.sql import SparkSession  # noqa: PLC0415

    given = _source_options(options) if form == FORMAT else options

    def read() -> "DataFrame":
        spark: Any = SparkSession.getActiveSession()
        reader = spark.readStream.format(form).options(**given)
        if schema and form != FORMAT:
            reader = reader.schema(schema)
        rows: DataFrame = reader.load()
        return rows.withWatermark("time", watermark) if watermark else rows

    if not schema or form != FORMAT:
        dp.temporary_view(name=name)(read)
        return
    wanted = sql_declarations.columns(schema)
    if "columns" in {key.lower() for key in options}:
        raise ValueError("the option columns and a schema exclude each other: leave one of them out")
    dp.temporary_view(name=name)(lambda: fitting(read(), wanted))
    dp.table(name=rejected or f"{name}_rejected")(lambda: unfitting(read(), wanted, name))


def sink(name: str, *, form: str = FORMAT, **options: str) -> None:
    """Declare a sink for flows. It stores rows with a column `payload`, and optionally `topic` and `fields`."""
    from pyspark import pipelines as dp  # noqa: PLC0415

    dp.create_sink(name, form, _sink_options(options) if form == FORMAT else dict(options))


def flow(name: str, view: str, target: str) -> None:
    """Declare a flow from a streaming view into a sink."""
    from pyspark import pipelines as dp  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    def read() -> "DataFrame":
        spark: Any = SparkSession.getActiveSession()
        rows: DataFrame = spark.readStream.table(view)
        return rows

    dp.append_flow(target=target, name=name)(read)


def fitting(rows: "DataFrame", wanted: list[sql_declarations.Column]) -> "DataFrame":
    """Return the messages that fit the schema: its columns, and the message columns with other names."""
    replaced = {column.name.lower() for column in wanted} | {"payload"}
    others = [
        name for name in COLUMNS if name not in replaced
    ]  # rows.columns would call Spark, which Spark forbids here
    fit = _validated(rows, wanted).where(f"{_REASON} IS NULL")
    return fit.select(*(f"{_PARSED}.`{column.name}`" for column in wanted), *others)


def unfitting(rows: "DataFrame", wanted: list[sql_declarations.Column], name: str) -> "DataFrame":
    """Return the messages that do not fit, with the reason. The progress of the query has their number."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    unfit = _validated(rows, wanted).where(f"{_REASON} IS NOT NULL").select(*COLUMNS, _REASON)
    return unfit.observe(f"{name}_rejected", F.count(F.lit(1)).alias("rows"))


def _validated(rows: "DataFrame", wanted: list[sql_declarations.Column]) -> "DataFrame":
    """Add a column with the parsed payload, and a column with the reason if it does not fit."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    text = F.col("payload").cast("string")
    listed = ", ".join(f"`{column.name}` {column.type}" for column in wanted)
    made = F.from_json(text, f"{listed}, `{_BROKEN}` STRING", {"columnNameOfCorruptRecord": _BROKEN})
    parsed = rows.withColumn(_PARSED, made)
    # A text or a number is valid JSON, but has no columns.
    whole = F.col(_PARSED).isNotNull() & F.col(f"{_PARSED}.{_BROKEN}").isNull()
    reason: Column = F.when(F.try_parse_json(text).isNull(), F.lit("no JSON")).when(
        ~whole, F.lit(f"not an object with {listed}")
    )
    for column in wanted:
        if column.required:
            reason = reason.when(F.col(f"{_PARSED}.`{column.name}`").isNull(), F.lit(f"{column.name} is missing"))
    return parsed.withColumn(_REASON, reason)


def with_bus(given: Mapping[str, str], default: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the bus of a source: its own, or the default ones."""
    own = {key: value for key, value in given.items() if key.lower() in {"url", "path", *_TLS}}
    return own if {"url", "path"} & {key.lower() for key in own} else own | dict(default)


def _source_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a source. The default start is `earliest`, so that the first update reads messages."""
    options = {key: str(value) for key, value in given.items()}
    options |= with_bus(options, _DEFAULTS.get({}))
    if not {key.lower() for key in given} & {"startingoffsets", "startingtimestamp"}:
        options["startingOffsets"] = "earliest"
    read_options(options)
    return options


def _sink_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a sink, with the default bus."""
    options = {key: str(value) for key, value in given.items()}
    if "url" not in {key.lower() for key in given}:
        options |= {key: value for key, value in _DEFAULTS.get({}).items() if key in {"url", *_TLS}}
    write_options(options)
    return options
