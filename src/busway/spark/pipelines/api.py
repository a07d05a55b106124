"""The functions of `busway.spark.pipelines`: source, sink and flow."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from busway.spark.options import COLUMNS, reading, writing
from busway.spark.pipelines import sql_declarations

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FORMAT: Final = "busway"
_WHERE: Final[ContextVar[Mapping[str, str]]] = ContextVar("busway.spark.pipelines.api.where")
_TLS: Final = ("ca", "cert", "key")
_BROKEN: Final = "_busway_broken"
_PARSED: Final = "_busway_parsed"
_REASON: Final = "reason"


@contextmanager
def where(options: Mapping[str, str]) -> Iterator[None]:
    """The bus (`url`, or `path`, and certificates) of all sources and sinks that don't say it themselves."""
    token = _WHERE.set(options)
    try:
        yield
    finally:
        _WHERE.reset(token)


def source(
    name: str, *, schema: str = "", watermark: str = "", form: str = FORMAT, rejected: str = "", **options: str
) -> None:
    """A view of messages as they come; a flow reads it with `STREAM name` or `spark.readStream.table(name)`.

    `options` are those of the source. With a `schema` payloads are JSON and its columns are there instead of the payload; messages that
    don't fit go to the table `<name>_rejected`, with the reason. `watermark` (`10 seconds`) is how late messages may come by their `time`.
    """
    from pyspark import pipelines as dp  # noqa: PLC0415 - heavy
    from pyspark.sql import SparkSession  # noqa: PLC0415

    given = _reading(options) if form == FORMAT else options

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
        raise ValueError("the option columns and a schema exclude each other")
    dp.temporary_view(name=name)(lambda: fitting(read(), wanted))
    dp.table(name=rejected or f"{name}_rejected")(lambda: unfitting(read(), wanted, name))


def sink(name: str, *, form: str = FORMAT, **options: str) -> None:
    """A topic of the bus that flows can write to: rows with a `payload`, and with `topic` and `fields` if they have them."""
    from pyspark import pipelines as dp  # noqa: PLC0415

    dp.create_sink(name, form, _writing(options) if form == FORMAT else dict(options))


def flow(name: str, view: str, target: str) -> None:
    """Rows of a streaming view into a sink."""
    from pyspark import pipelines as dp  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    def read() -> "DataFrame":
        spark: Any = SparkSession.getActiveSession()
        rows: DataFrame = spark.readStream.table(view)
        return rows

    dp.append_flow(target=target, name=name)(read)


def fitting(rows: "DataFrame", wanted: list[sql_declarations.Column]) -> "DataFrame":
    """Messages whose payload fits: its columns instead of it, and of the others those with another name."""
    taken = {one.name.lower() for one in wanted} | {"payload"}
    others = [name for name in COLUMNS if name not in taken]  # asking the rows would start Spark, which it forbids here
    fit = _judged(rows, wanted).where(f"{_REASON} IS NULL")
    return fit.select(*(f"{_PARSED}.`{one.name}`" for one in wanted), *others)


def unfitting(rows: "DataFrame", wanted: list[sql_declarations.Column], name: str) -> "DataFrame":
    """The others, with the reason; how many there are is told in the progress of the query."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    unfit = _judged(rows, wanted).where(f"{_REASON} IS NOT NULL").select(*COLUMNS, _REASON)
    return unfit.observe(f"{name}_rejected", F.count(F.lit(1)).alias("rows"))


def _judged(rows: "DataFrame", wanted: list[sql_declarations.Column]) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    text = F.col("payload").cast("string")
    listed = ", ".join(f"`{one.name}` {one.type}" for one in wanted)
    made = F.from_json(text, f"{listed}, `{_BROKEN}` STRING", {"columnNameOfCorruptRecord": _BROKEN})
    parsed = rows.withColumn(_PARSED, made)
    # A text or a number is JSON, too, but has no columns.
    whole = F.col(_PARSED).isNotNull() & F.col(f"{_PARSED}.{_BROKEN}").isNull()
    reason: Column = F.when(F.try_parse_json(text).isNull(), F.lit("no JSON")).when(
        ~whole, F.lit(f"not an object with {listed}")
    )
    for one in wanted:
        if one.required:
            reason = reason.when(F.col(f"{_PARSED}.`{one.name}`").isNull(), F.lit(f"{one.name} is missing"))
    return parsed.withColumn(_REASON, reason)


def place(given: Mapping[str, str], otherwise: Mapping[str, str]) -> dict[str, str]:
    """Where a source with these options reads; if it doesn't say it, elsewhere."""
    own = {key: value for key, value in given.items() if key.lower() in {"url", "path", *_TLS}}
    return own if {"url", "path"} & {key.lower() for key in own} else own | dict(otherwise)


def _reading(given: Mapping[str, str]) -> dict[str, str]:
    """Everything that is there at the first start is read, unless something else is said: else the first update would read nothing."""
    options = {key: str(value) for key, value in given.items()}
    options |= place(options, _WHERE.get({}))
    if not {key.lower() for key in given} & {"startingoffsets", "startingtimestamp"}:
        options["startingOffsets"] = "earliest"
    reading(options)
    return options


def _writing(given: Mapping[str, str]) -> dict[str, str]:
    options = {key: str(value) for key, value in given.items()}
    if "url" not in {key.lower() for key in given}:
        options |= {key: value for key, value in _WHERE.get({}).items() if key in {"url", *_TLS}}
    writing(options)
    return options
