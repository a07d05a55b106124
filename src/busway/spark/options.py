"""Options of the source and the sink: parses and checks them. Called by source, sink and lake."""

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import msgspec

from busway._core import check_pattern
from busway.common.durations import duration
from busway.errors import InvalidTopic
from busway.streams import check_name
from busway.topic import check_topic, is_reserved

COLUMNS: Final = (
    "broker",
    "stream",
    "offset",
    "topic",
    "sequence",
    "stored",
    "time",
    "id",
    "sender",
    "fields",
    "payload",
)

Offsets: TypeAlias = dict[str, int]
"""Offsets by `stream`, or by `guid/stream` for one broker."""
Bound: TypeAlias = str | datetime | Offsets
"""A start or an end: `earliest`, `latest`, a time, or offsets."""


class OptionError(ValueError):
    """An unknown option, or a value that the option can't have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The checked options of a read or a write."""

    urls: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    """Names of streams. An empty tuple means all streams."""
    topics: tuple[str, ...] = ("**",)
    columns: tuple[str, ...] = COLUMNS
    starting: Bound | None = None
    ending: Bound | None = None
    max_records: int | None = None
    max_bytes: int | None = None
    min_partitions: int = 0
    partition_records: int = 0
    fail_on_data_loss: bool = True
    channel: str = ""
    """The channel that shows the progress of a streaming query."""
    behind: str = ""
    """The folder of a lake: only messages that are newer than its archive are read, as table() does."""
    types: str = ""
    """The declarations of typed columns, as busway.spark.typed.dump() returns them."""
    tls: Mapping[str, str] = field(default_factory=dict)
    topic: str = ""
    """The topic of the sink for rows without a topic."""
    timeout: float = 30.0


def _words(text: str) -> tuple[str, ...]:
    """Parse texts separated by commas, or a JSON list if a text contains a comma."""
    if text.lstrip().startswith("["):
        try:
            found = tuple(msgspec.json.decode(text, type=list[str]))
        except msgspec.MsgspecError as error:
            raise ValueError(f"it is not a JSON list of texts: {error}") from error
    else:
        found = tuple(word.strip() for word in text.split(",") if word.strip())
    if not found:
        raise ValueError("give at least one, several separated by commas")
    return found


def _patterns(text: str) -> tuple[str, ...]:
    try:
        return tuple(check_pattern(word) for word in _words(text))
    except InvalidTopic as error:
        several = "," in text and not text.lstrip().startswith("[")
        hint = (
            '. A comma separates patterns: put a pattern with a comma into a JSON list, ["re:a{1,2}"]'
            if several
            else ""
        )
        raise ValueError(f"{error}{hint}") from error


def storable(text: str) -> str:
    """Check a topic on which messages can be stored. Raises ValueError."""
    try:
        topic = check_topic(text)
    except InvalidTopic as error:
        raise ValueError(str(error)) from error
    if "*" in topic or topic.startswith("re:"):
        raise ValueError("a stored message has one topic: give a topic without wildcards")
    if is_reserved(topic):
        raise ValueError("topics below $bus belong to the broker: give another topic")
    return topic


def _names(text: str) -> tuple[str, ...]:
    found = _words(text)
    for name in found:
        if name not in COLUMNS:
            raise ValueError(f"there is no column {name!r}{nearest(name, COLUMNS)}; choose among {', '.join(COLUMNS)}")
        if found.count(name) > 1:
            raise ValueError(f"the column {name!r} is given {found.count(name)} times; give it once")
    return found


def _channel(text: str) -> str:
    return check_name("channel", text)


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]+(_[0-9]+)*", text) or int(text) == 0:
        raise ValueError("give a number of 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        try:
            found = duration("", text)
        except ValueError:
            found = 0.0
    if not 0 < found < 1e6:
        raise ValueError("give a number of seconds, or text such as 5s or 1m30s")
    return found


def _boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("give true or false")
    return text.lower() == "true"


def _moment(text: str) -> datetime:
    try:
        if re.fullmatch(r"[0-9]+", text):
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise ValueError("give a time like 2026-01-31T12:00:00Z, or milliseconds since 1970") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _offsets(text: str) -> str | Offsets:
    if text.lower() in {"earliest", "latest"}:
        return text.lower()
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise ValueError('give earliest, latest, or offsets as JSON: {"orders": 120}')  # noqa: TRY004 - of a text
    found: Offsets = {}
    for name, value in given.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        for stream, offset in inner:
            if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
                raise ValueError(f"the offset of {stream or name!r} must be a number of 0 or more, but is {offset!r}")
            found[f"{name}/{stream}" if stream else name] = offset
    return found


_READ_OPTIONS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "url": ("urls", _words),
    "path": ("paths", _words),
    "streams": ("streams", _words),
    "topics": ("topics", _patterns),
    "columns": ("columns", _names),
    "startingOffsets": ("starting", _offsets),
    "startingTimestamp": ("starting", _moment),
    "endingOffsets": ("ending", _offsets),
    "endingTimestamp": ("ending", _moment),
    "maxRecordsPerTrigger": ("max_records", _count),
    "maxBytesPerTrigger": ("max_bytes", _count),
    "minPartitions": ("min_partitions", _count),
    "maxRecordsPerPartition": ("partition_records", _count),
    "failOnDataLoss": ("fail_on_data_loss", _boolean),
    "channel": ("channel", _channel),
    "behind": ("behind", str),
    "types": ("types", str),
    "timeout": ("timeout", _seconds),
}
_WRITE_OPTIONS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "url": ("urls", _words),
    "topic": ("topic", storable),
    "timeout": ("timeout", _seconds),
}
_TLS: Final = ("ca", "cert", "key")
_KAFKA: Final = {
    "kafka.bootstrap.servers": "here it is url: tcp://HOST:PORT, several separated by commas",
    "subscribe": "here it is topics",
    "subscribePattern": "here it is topics, and a regular expression begins with re:",
    "assign": "here it is startingOffsets and endingOffsets",
    "maxOffsetsPerTrigger": "here it is maxRecordsPerTrigger",
    "includeHeaders": "here it is the column fields, which is always there",
    "kafka.group.id": "here a channel shows the progress of a query: the option channel",
}
_OTHERS: Final = _KAFKA | {
    "history": "busway.spark.table(spark, lake, url=...) reads a lake and the newer messages of the bus as one table"
}
_IGNORED: Final = {"checkpointlocation", "queryname"}
"""Options of Spark that Spark also passes to a sink."""


def read_options(given: Mapping[str, str]) -> Options:
    """Parse and check the options of a read. Raises OptionError."""
    options = _parse(given, _READ_OPTIONS)
    if bool(options.urls) == bool(options.paths):
        raise OptionError(
            "the source of the read is missing or ambiguous: give the option url (tcp://127.0.0.1:7420) or path (a data folder)"
        )
    if options.paths and options.channel:
        raise OptionError("the option channel needs a bus: give a url instead of a path")
    return options


def write_options(given: Mapping[str, str]) -> Options:
    """Parse and check the options of a write. Raises OptionError."""
    options = _parse(given, _WRITE_OPTIONS)
    if not options.urls:
        raise OptionError("the target of the write is missing: give the option url, for example tcp://127.0.0.1:7420")
    if len(options.urls) > 1:
        raise OptionError("a sink writes to one bus, where it finds the messages that it has stored: give one url")
    return options


def _parse(given: Mapping[str, str], known: Mapping[str, tuple[str, Callable[[str], Any]]]) -> Options:
    names = {name.lower(): name for name in (*known, *_TLS)}
    found: dict[str, Any] = {}
    tls: dict[str, str] = {}
    source: dict[str, str] = {}
    for key, value in given.items():
        if key.lower() in _IGNORED:
            continue
        name = names.get(key.lower())
        if name is None:
            raise OptionError(f"there is no option {key!r}{_suggestion(key, tuple(names.values()))}")
        if name in _TLS:
            tls[name] = value
            continue
        target, read = known[name]
        if target in found:
            raise OptionError(f"the options {source[target]} and {name} exclude each other: give one of them")
        try:
            found[target], source[target] = read(value), name
        except ValueError as error:
            raise OptionError(f"the option {name} can't be {value!r}: {error}") from None
    options = Options(**found, tls=tls)
    if tls and not any(url.startswith("tls:") for url in options.urls):
        raise OptionError(f"the option {next(iter(tls))} is for a bus behind TLS: give a url that begins with tls://")
    return options


def _suggestion(key: str, known: tuple[str, ...]) -> str:
    """Return what replaces an option of Spark's Kafka source, else the nearest known option."""
    found = next((ours for theirs, ours in _OTHERS.items() if theirs.lower() == key.lower()), None)
    return nearest(key, known) if found is None else f" ({found})"


def nearest(word: str, known: tuple[str, ...]) -> str:
    """Return the most similar known word for an error message, or all known words."""
    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), lower, 1, 0.6)
    return f" (did you mean {lower[near[0]]!r}?)" if near else f"; choose among {', '.join(sorted(known))}"


assert {target for target, _ in (*_READ_OPTIONS.values(), *_WRITE_OPTIONS.values())} <= {
    one.name for one in fields(Options)
}
