"""The Delta table of a lake: opens, changes and maintains it through delta-rs (the package `deltalake`).

The jobs of the lake call it. `stream=S/date=YYYY-MM-DD/*.parquet` has the rows, `_delta_log` the commits of delta-rs, and
`_staging` the files that Spark writes before their commit. Any reader of Delta can read the folder.
"""

import json
import logging
import math
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from busway.spark import typed
from busway.spark.columns import arrow_schema
from busway.spark.lake import statistics
from busway.spark.lake.coverage import Covered, File, LakeError, Snapshot, State, decode, differences
from busway.spark.options import COLUMNS
from busway.spark.ranges import Place

log = logging.getLogger("busway.spark")

STAGING: Final = "_staging"
PARTITIONS: Final = ["stream", "date"]
SMALL: Final = 256 << 20
"""Default size in bytes of a merged file; smaller files are merged."""
_METADATA: Final = "busway"
_TYPES: Final = "busway.types"
_CONFIGURATION: Final = {"delta.checkpointInterval": "20"}
_NEUTRAL: Final = {"OPTIMIZE", "VACUUM START", "VACUUM END", "ADD COLUMN", "SET TBLPROPERTIES", "CREATE TABLE"}
"""Operations of a table that change no row."""
_ATTEMPTS: Final = 20
"""Number of versions for which a commit is tried while other writers commit."""


class Conflict(LakeError):  # noqa: N818 - named after what it reports
    """Another archive has committed the same messages. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Added:
    """A file that is in its place and not committed yet."""

    stream: str
    rows: int
    bytes: int
    typed: tuple[str, ...]
    """The typed columns in which the file has values."""
    action: AddAction


@dataclass(frozen=True, slots=True)
class Optimized:
    """The result of OPTIMIZE for a stream and day."""

    stream: str
    date: str
    before: int
    after: int
    bytes: int


class Lake:
    """A lake in a local folder, or in a store that pyarrow, delta-rs and Spark support by its URI."""

    def __init__(self, where: str | os.PathLike[str]) -> None:
        text = os.fspath(where)
        self.name = text
        if found := set(text) & set("*?[]{}\\"):
            raise LakeError(
                f"the lake {text!r} can't have {' '.join(sorted(found))} in its name: Spark takes that for a pattern"
            )
        try:
            if "://" in text:
                self._files, self._root = fs.FileSystem.from_uri(re.sub(r"^s3[an]://", "s3://", text))
            else:
                self._files, self._root = fs.LocalFileSystem(), str(Path(text).absolute())
        except (pa.ArrowException, OSError, ValueError) as error:
            raise LakeError(f"the lake {text!r} can't be used: {error}") from error
        self.local = isinstance(self._files, fs.LocalFileSystem)

    def path(self, *parts: str) -> str:
        return "/".join((self._root, *parts))

    def uri(self, *parts: str) -> str:
        """Return the URI of a path for Spark."""
        if self.local:
            return f"file://{self.path(*parts)}"  # Spark takes it as it is written, so nothing is escaped
        scheme, rest = self.name.rstrip("/").split("://", 1)
        return "/".join((f"{'s3a' if scheme == 's3' else scheme}://{rest}", *parts))

    # Reading.

    def open(self) -> DeltaTable:
        """Return the table at its newest version. Raises LakeError."""
        try:
            table = DeltaTable(self._root if self.local else self.name)
        except TableNotFoundError:
            if self._info(self.path("commits")).type == fs.FileType.Directory:
                raise LakeError(
                    f"the lake {self.name} has the format of an older Busway: run `busway lake upgrade --lake {self.name}`"
                ) from None
            raise LakeError(
                f"{self.name} is not a lake, because it has no Delta table: give the folder of an archive"
            ) from None
        except (DeltaError, OSError, ValueError) as error:
            raise LakeError(f"the Delta table of the lake {self.name} can't be read: {error}") from error
        if (version := table.protocol().min_reader_version) > 1:
            raise LakeError(
                f"the lake {self.name} needs a reader of version {version}, and Busway reads version 1: another program has added "
                f"features ({', '.join(table.protocol().reader_features or ())}). Remove them, or restore the version before"
            )
        return table

    def exists(self) -> bool:
        try:
            self.open()
        except LakeError as error:
            if (
                isinstance(error.__cause__, DeltaError)
                or self._info(self.path("_delta_log")).type != fs.FileType.NotFound
            ):
                raise
            return False
        return True

    def snapshot(self, table: DeltaTable | None = None) -> Snapshot:
        """Return the content of the table at its newest version. Raises LakeError."""
        table = self.open() if table is None else table
        files = tuple(_file(action) for action in pa.table(table.get_add_actions(flatten=True)).to_pylist())
        state, by = self._state(table)
        types = str(table.metadata().configuration.get(_TYPES) or "")
        if state is None:
            if files:
                raise LakeError(f"{self.name} is a Delta table, but not of an archive: give another folder")
            return Snapshot(table.version(), types=types)
        covered = {part.place: part for part in state.covered}
        found = Snapshot(table.version(), state.id, state.topics, covered, files, state.typed, state.vacuumed, types)
        return replace(found, changed=tuple(differences(self.name, state.rows, found.rows, by)))

    def _state(self, table: DeltaTable) -> tuple[State | None, list[str]]:
        """Return the newest metadata of the archive, and the newer commits of other programs that changed rows."""
        limit, others = 8, list[str]()
        while True:
            history = table.history(limit)
            for entry in history:
                if entry["version"] > table.version():
                    continue
                if _METADATA in entry:
                    return decode(entry[_METADATA], f"version {entry['version']} of {self.name}"), others
                if entry["operation"] not in _NEUTRAL:
                    name = f"version {entry['version']} ({entry['operation']} of {entry.get('engineInfo', 'unknown')})"
                    others = others if name in others else [*others, name]
            if len(history) < limit:
                return None, others
            limit *= 8

    def rows(self, file: File, schema: pa.Schema) -> pads.Dataset:
        """Return the rows of a file; `schema` has the typed columns. Raises LakeError if the file is missing."""
        if error := self.lacking([file]):
            raise error
        plain = [name for name in COLUMNS if name not in PARTITIONS]
        schema = pa.unify_schemas(
            [arrow_schema(plain), schema.remove(schema.names.index("stream")) if "stream" in schema.names else schema]
        )
        return pads.dataset(self.path(file.path), schema=schema, format="parquet", filesystem=self._files)

    def lacking(self, files: Sequence[File]) -> LakeError | None:
        """Return an error that names the messages of files that do not exist. None: all exist."""
        gone = [file for file in files if self._info(self.path(file.path)).type != fs.FileType.File]
        if not gone:
            return None
        count = sum(file.rows for file in gone)
        which = [f"{file.path} ({file.rows}{_span(file.offsets)})" for file in gone[:3]]
        more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
        return LakeError(
            f"{count} messages of the lake {self.name} are missing, because their files do not exist: {', '.join(which)}{more}. Restore "
            "them from a copy"
        )

    # Writing.

    def create(self) -> DeltaTable:
        """Create the table if there is none. Returns the table."""
        if self.exists():
            return self.open()
        schema = pa.schema([*arrow_schema(COLUMNS), pa.field("date", pa.date32())])
        try:
            return DeltaTable.create(
                self._root if self.local else self.name, schema, partition_by=PARTITIONS, configuration=_CONFIGURATION
            )
        except (DeltaError, OSError) as error:
            if self.exists():  # another archive was faster
                return self.open()
            raise LakeError(f"the Delta table of the lake {self.name} can't be created: {error}") from error

    def declare(self, types: Iterable[typed.Declared]) -> str:
        """Add declarations of typed columns to the table. Returns all declarations. Raises TypeConflict."""
        table = self.open()
        known = {one.name: one for one in typed.load(str(table.metadata().configuration.get(_TYPES) or ""))}
        before = dict(known)
        for one in types:
            if clash := next((name for name in known if name != one.name and name.lower() == one.name.lower()), None):
                raise typed.TypeConflict(f"the types {clash} and {one.name} differ only in case: rename one of them")
            known[one.name] = typed.evolved(known.get(one.name), one)
        if known != before:
            with self._changes():
                table.alter.add_columns(Schema.from_arrow(pa.schema(typed.arrow_schema(tuple(known.values())))).fields)
                table = self.open()
                table.alter.set_table_properties({_TYPES: typed.dump(known.values())}, raise_if_not_exists=False)
        return typed.dump(known.values()) if known else ""

    def place(self, staging: str) -> list[Added]:
        """Move the files of a staging folder to their place, durably. They are part of the table after commit()."""
        added, folders = list[Added](), set[str]()
        for info in self._list(self.path(STAGING, staging), recursive=True):
            if info.type != fs.FileType.File or not info.base_name.endswith(".parquet") or info.base_name[0] in "._":
                continue
            path = "/".join(info.path.split("/")[-3:])
            if (folder := path.rpartition("/")[0]) not in folders:
                folders.add(folder)
                self._files.create_dir(self.path(folder), recursive=True)
            if self.local:
                _sync(info.path)
            self._files.move(info.path, self.path(path))
            added.append(self.measured(path))
        if self.local:
            for folder in folders:
                _sync(self.path(folder))
        return added

    def measured(self, path: str, base: str = "") -> Added:
        """Return a Parquet file `stream=S/date=D/NAME` below `base` with its statistics, for a commit."""
        stream, day = (part.partition("=")[2] for part in path.split("/")[-3:-1])
        whole = self.path(*(part for part in (base, path) if part))
        with self._files.open_input_file(whole) as file:
            metadata = pq.ParquetFile(file).metadata
        found = statistics.of(metadata)
        filled = {name.partition(".")[0] for name in found.filled if "." in name}
        info = self._info(whole)
        action = AddAction(
            path="/".join(part for part in (base, path) if part),
            size=info.size,
            partition_values={"stream": stream, "date": day},
            modification_time=int(info.mtime.timestamp() * 1000),
            data_change=True,
            stats=found.text,
        )
        return Added(stream, metadata.num_rows, info.size, tuple(sorted(filled - {"fields"})), action)

    def commit(
        self,
        before: Snapshot,
        added: Sequence[Added],
        ranges: Sequence[Covered],
        topics: Sequence[str],
        vacuumed: float | None = None,
    ) -> Snapshot:
        """Commit files and the offsets that they cover. Raises Conflict if another archive has committed the same ones.

        The commit is tried for exactly the next version, because its metadata continues that of the version before.
        """
        id_, snapshot = uuid.uuid4().hex, before
        rows, columns = dict[str, int](), dict[str, tuple[str, ...]]()
        for one in added:
            rows[one.stream] = rows.get(one.stream, 0) + one.rows
            columns[one.stream] = (*columns.get(one.stream, ()), *one.typed)
        for _ in range(_ATTEMPTS):
            table, failed = self.open(), None
            if table.version() == snapshot.version:
                state = snapshot.state(id_, topics, ranges, rows, columns, vacuumed)
                failed = self._write(table, [one.action for one in added], state)
                if failed is None:
                    return self.snapshot()
            newer = self.snapshot()
            if newer.id == id_:  # the error came after the commit
                return newer
            if newer.version == snapshot.version:
                raise LakeError(f"the commit to the lake {self.name} failed: {failed}") from failed
            if any(newer.end(part.place) != snapshot.end(part.place) for part in ranges):
                streams = ", ".join(sorted({part.stream for part in ranges}))
                raise Conflict(
                    f"another archive has written the streams {streams} to the lake {self.name} at the same time"
                )
            if newer.topics and set(newer.topics) != set(topics):
                raise Conflict(f"another archive writes the topics {', '.join(newer.topics)} to the lake {self.name}")
            snapshot = newer
        raise LakeError(f"other programs change the lake {self.name} all the time: no commit in {_ATTEMPTS} attempts")

    def _write(self, table: DeltaTable, actions: list[AddAction | RemoveAction], state: State) -> Exception | None:
        properties = CommitProperties(
            custom_metadata={_METADATA: msgspec.to_builtins(state)},
            max_commit_retries=0,
            app_transactions=[Transaction(app_id(part.place), part.end) for part in state.ranges],
        )
        try:
            table.create_write_transaction(actions, "append", table.schema(), PARTITIONS, commit_properties=properties)
        except (CommitFailedError, DeltaError, OSError) as error:
            return error
        return None

    def discard(self, added: Sequence[Added]) -> None:
        """Delete files that were not committed."""
        for one in added:
            self._files.delete_file(self.path(one.action.path))

    def unstage(self, staging: str) -> None:
        """Delete a staging folder."""
        if self._info(self.path(STAGING, staging)).type == fs.FileType.Directory:
            self._files.delete_dir(self.path(STAGING, staging))

    def optimize(self, *, below: int = SMALL, least: int = 2, streams: Sequence[str] = ()) -> list[Optimized]:
        """Merge files smaller than `below` bytes (OPTIMIZE) where a stream has at least `least` of a day."""
        table = self.open()
        small: dict[tuple[str, date], int] = {}
        for file in self.snapshot(table).files:
            if file.bytes < below and (not streams or file.stream in streams):
                small[file.stream, file.date] = small.get((file.stream, file.date), 0) + 1
        found = []
        for (stream, day), count in sorted(small.items()):
            if count < max(least, 2):
                continue
            with self._changes():
                done = table.optimize.compact(
                    partition_filters=[("stream", "=", stream), ("date", "=", day.isoformat())],
                    target_size=below,
                    writer_properties=WriterProperties(compression="ZSTD"),
                )
            if done["numFilesRemoved"]:
                size = json.loads(done["filesAdded"])["totalSize"]
                found.append(Optimized(stream, day.isoformat(), done["numFilesRemoved"], done["numFilesAdded"], size))
        return found

    def vacuum(self, keep: float) -> list[str]:
        """Delete the files that no version of the last `keep` seconds has (VACUUM), and old staging folders."""
        for info in self._list(self.path(STAGING)):
            if info.mtime <= datetime.now(UTC) - timedelta(seconds=keep):
                self._files.delete_dir(info.path)
        table = self.open()
        with self._changes():
            deleted = table.vacuum(math.ceil(keep / 3600), dry_run=False, enforce_retention_duration=False, full=True)
        # The log of a table forgets old commits, so the newest ones must have the metadata of the archive.
        snapshot = self.snapshot()
        if snapshot.covered and not snapshot.changed:
            self.commit(snapshot, (), (), snapshot.topics, time.time())
        return deleted

    # Inside.

    @contextmanager
    def _changes(self) -> Iterator[None]:
        try:
            yield
        except (DeltaError, OSError) as error:
            raise LakeError(f"the Delta table of the lake {self.name} can't be changed: {error}") from error

    def _info(self, path: str) -> fs.FileInfo:
        return self._files.get_file_info(path)

    def _list(self, path: str, *, recursive: bool = False) -> Sequence[fs.FileInfo]:
        selector = fs.FileSelector(path, recursive=recursive, allow_not_found=True)
        found: Sequence[fs.FileInfo] = self._files.get_file_info(selector)
        return found


def app_id(place: Place) -> str:
    """Return the name of a stream in the app transactions of the table."""
    return f"busway/{place[0]}/{place[1]}"


def _file(action: Mapping[str, Any]) -> File:
    first, last = action.get("min.offset"), action.get("max.offset")
    return File(
        unquote(action["path"]),
        action["partition.stream"],
        action["partition.date"],
        action["num_records"] or 0,
        action["size_bytes"],
        None if first is None or last is None else (first, last),
    )


def _span(offsets: tuple[int, int] | None) -> str:
    return "" if offsets is None else f", offsets {offsets[0]} to {offsets[1]}"


def _sync(path: str) -> None:
    """Make what was written to a file, or moved into a folder, durable."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
