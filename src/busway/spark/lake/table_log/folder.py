"""Folder of a lake: reads and writes its commits and files, and locks it for one writer.

The jobs of the lake call it. `data/stream=S/date=YYYY-MM-DD/*.parquet` has the rows, `commits/NNNNNNNN.json` the
commits, and `staging/` the files of the running round. All access goes through pyarrow's file systems, so that a lake
can also be in an object store. A local disk gives the strongest guarantees: a commit is linked into place, which fails
if it exists.
"""

import contextlib
import fcntl
import json
import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from busway.spark.lake.table_log.commits import Commit, File, LakeError, Snapshot, Whole, decode, encode

log = logging.getLogger("busway.spark")

DATA: Final = "data"
COMMITS: Final = "commits"
STAGING: Final = "staging"
ASIDE: Final = "aside"
LOCK: Final = "lock.json"
_COMMIT: Final = re.compile(r"(\d{8,})\.json")
_WHOLE: Final = re.compile(r"(\d{8,})\.all\.json")
_DATA: Final = re.compile(r"r(\d{8,})-\d+-[0-9a-f]+\.parquet")
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_EVERY: Final = 64
"""Commits after which all is written as one."""
_LEASE: Final = 600.0
"""Seconds after which the lock of a silent owner is taken over, where there are no locks of the system."""


T = TypeVar("T", Commit, Whole)


class Lake:
    """A lake in a local folder, or in a store that pyarrow supports by its URI."""

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
        self._locked = False
        self.token = uuid.uuid4().hex[:12]
        """Of this writer, in the names of its files."""

    # Names.

    def path(self, *parts: str) -> str:
        return "/".join((self._root, *parts))

    def uri(self, *parts: str) -> str:
        """As Spark takes it."""
        if self.local:
            return f"file://{self.path(*parts)}"  # Spark takes it as it is written, so nothing is escaped
        scheme, rest = self.name.rstrip("/").split("://", 1)
        return "/".join((f"{'s3a' if scheme == 's3' else scheme}://{rest}", *parts))

    # Reading.

    def exists(self) -> bool:
        """Whether an archive was here. One that has files but no commit has lost it, and is none."""
        if self._info(self.path(COMMITS)).type != fs.FileType.Directory:
            return False
        return any(self._numbers()) or not self.files()

    def snapshot(self, known: Snapshot | None = None) -> Snapshot:
        """What the commits say now. One that is known is gone on from."""
        numbers, wholes = self._numbers()
        snapshot = known
        for number in sorted(wholes, reverse=True):
            if known is not None and known.number >= number:
                break
            try:
                snapshot = Snapshot.of(self._read(f"{number:08d}.all.json", Whole))
            except LakeError as error:
                log.warning("%s; the commits before it are read instead", error)
                continue
            break
        snapshot = Snapshot() if snapshot is None else snapshot
        for number in sorted(number for number in numbers if number > snapshot.number):
            snapshot.apply(self._read(f"{number:08d}.json", Commit))
        return snapshot

    def _numbers(self) -> tuple[list[int], list[int]]:
        commits, wholes = [], []
        for info in self._list(self.path(COMMITS)):
            if found := _COMMIT.fullmatch(info.base_name):
                commits.append(int(found[1]))
            elif found := _WHOLE.fullmatch(info.base_name):
                wholes.append(int(found[1]))
        return commits, wholes

    def _read(self, name: str, kind: type[T]) -> T:
        path = self.path(COMMITS, name)
        try:
            with self._files.open_input_stream(path) as file:
                content = file.read()
        except OSError as error:
            raise LakeError(f"{path} can't be read: {error}") from error
        return decode(content, kind, path)

    def parquet(self, path: str) -> pq.ParquetFile:
        """A file of `data`. Raises LakeError if it is missing."""
        try:
            return pq.ParquetFile(self.path(DATA, path), filesystem=self._files)
        except FileNotFoundError:
            raise self.missing(path) from None

    def lacking(self, paths: Iterable[str]) -> str | None:
        """The first of these files of `data` that is not there."""
        return next((path for path in paths if self._info(self.path(DATA, path)).type != fs.FileType.File), None)

    def missing(self, path: str) -> LakeError:
        """What to say of a file of `data` that is not there."""
        return LakeError(
            f"the file {DATA}/{path} of the lake {self.name} is missing, which {self.missing_commit(path)} names: bring it back from a copy"
        )

    def missing_commit(self, path: str) -> str:
        """The commit that a file of `data` is of."""
        number = self.round(path)
        return "a commit" if number is None else f"{COMMITS}/{number:08d}.json"

    def files(self) -> set[str]:
        """All Parquet files below `data`, whether commits name them or not."""
        root = self.path(DATA) + "/"
        return {
            info.path.removeprefix(root)
            for info in self._list(self.path(DATA), recursive=True)
            if _DATA.fullmatch(info.base_name)
        }

    def round(self, path: str) -> int | None:
        """The number of the round that made a file of `data`."""
        found = _DATA.fullmatch(path.rpartition("/")[2])
        return int(found[1]) if found else None

    def measured(self, path: str) -> tuple[File, tuple[str, str]]:
        """A file of `data` that no commit tells about, and the first and the last of its brokers by the alphabet."""
        stream, date = (part.split("=", 1)[1] for part in path.split("/")[-3:-1])
        whole = self.path(DATA, path)
        with self._files.open_input_file(whole) as file:
            brokers = _bounds(pq.ParquetFile(file).metadata, "broker", whole)
        return self._measured(whole, path, stream, date), brokers

    def staged(self, folder: str) -> Iterator[tuple[str, str, str]]:
        """What was written to a folder of `staging`: path, stream, date."""
        for info in self._list(self.path(STAGING, folder), recursive=True):
            if info.type == fs.FileType.File and info.base_name.endswith(".parquet") and info.base_name[0] not in "._":
                stream, date = (part.split("=", 1)[1] for part in info.path.split("/")[-3:-1])
                yield info.path, stream, date

    # Writing: only with the lock.

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the lake for this writer. Raises LakeError if another process writes to it."""
        self._make(self.path())
        with self._claimed() if self.local else self._leased():
            self._locked = True
            try:
                yield
            finally:
                self._locked = False

    def make(self) -> None:
        """Its folders. From here on it is a lake, even if it has nothing yet."""
        assert self._locked
        for folder in (COMMITS, DATA, STAGING):
            self._make(self.path(folder))

    @contextlib.contextmanager
    def _claimed(self) -> Iterator[None]:
        """By a lock of the system, which ends with its owner."""
        handle = os.open(self.path(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._busy(os.pread(handle, 4096, 0)) from None
            os.ftruncate(handle, 0)
            os.pwrite(handle, self._owner(), 0)
            yield
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def _leased(self) -> Iterator[None]:
        """By a file that its owner writes anew with each commit."""
        path = self.path(LOCK)
        if self._info(path).type == fs.FileType.File:
            with self._files.open_input_stream(path) as file:
                content = file.read()
            with contextlib.suppress(ValueError, KeyError, TypeError):
                if json.loads(content)["time"] + _LEASE > time.time():
                    raise self._busy(content)
        self._put(path, self._owner())
        try:
            yield
        finally:
            self._files.delete_file(path)

    def _owner(self) -> bytes:
        return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "time": time.time()}).encode()

    def _busy(self, content: bytes) -> LakeError:
        try:
            owner = json.loads(content)
            owner_name = f"process {owner['pid']} on {owner['host']}"
        except (ValueError, KeyError, TypeError):
            owner_name = "another process"
        return LakeError(
            f"the lake {self.name} is being written by {owner_name}; wait until it has ended, since a lake has one writer"
        )

    def commit(self, snapshot: Snapshot, commit: Commit) -> None:
        """Add a round to the lake, durably, and to the snapshot that it was made from."""
        assert self._locked
        self._make(self.path(COMMITS))
        path = self.path(COMMITS, f"{commit.number:08d}.json")
        self._put_new(path, encode(commit))
        snapshot.apply(commit)
        if commit.number % _EVERY == 0:
            self._put(self.path(COMMITS, f"{commit.number:08d}.all.json"), encode(snapshot.whole()))
        if not self.local:
            self._put(self.path(LOCK), self._owner())

    def place(self, number: int, staged: Iterable[tuple[str, str, str]]) -> list[File]:
        """Move staged files to where they belong; the last step before the commit."""
        assert self._locked
        made: list[tuple[str, File]] = []
        for count, (path, stream, date) in enumerate(staged):
            name = f"stream={stream}/date={date}/r{number:08d}-{count:04d}-{self.token}.parquet"
            made.append((path, self._measured(path, name, stream, date)))
        folders = {self.path(DATA, str(Path(file.path).parent)) for _, file in made}
        for folder in folders:
            self._make(folder)
        for path, file in made:
            self._move(path, self.path(DATA, file.path))
        if self.local:
            for folder in {*folders, self.path(DATA), *(str(Path(folder).parent) for folder in folders)}:
                _sync(folder)
        return [file for _, file in made]

    def _measured(self, path: str, name: str, stream: str, date: str) -> File:
        with self._files.open_input_file(path) as file:
            size, metadata = file.size(), pq.ParquetFile(file).metadata
        if self.local:
            _sync(path)
        offsets = _bounds(metadata, "offset", path)
        stored = _microseconds(_bounds(metadata, "stored", path))
        return File(name, stream, date, metadata.num_rows, size, offsets, stored)

    def brokers(self, staged: Iterable[tuple[str, str, str]]) -> set[str]:
        """Whose rows are in these files: the first and the last of each, by the alphabet."""
        found: set[str] = set()
        for path, _, _ in staged:
            with self._files.open_input_file(path) as file:
                found.update(_bounds(pq.ParquetFile(file).metadata, "broker", path))
        return found

    def _move(self, path: str, to: str) -> None:
        self._files.move(path, to)

    def clean(self, snapshot: Snapshot, grace: float) -> tuple[str, ...]:
        """Delete staged files of killed rounds, and removed files that are old enough. Returns the latter, for the next commit."""
        assert self._locked
        for info in self._list(self.path(STAGING)):
            log.info("%s is left from a round that did not end, and is removed", info.path)
            self._files.delete_dir(info.path) if info.type == fs.FileType.Directory else self._files.delete_file(
                info.path
            )
        if self.local:
            for path in Path(self.path(COMMITS)).glob(".*.new"):
                path.unlink(missing_ok=True)
        return self.delete_old(snapshot, grace)

    def delete(self, path: str) -> None:
        """A file of `data`."""
        assert self._locked
        self._files.delete_file(self.path(DATA, path))

    def set_aside(self, path: str) -> None:
        """Move a file of `data` out of the lake, into a folder that is never cleaned."""
        assert self._locked
        to = self.path(ASIDE, path)
        self._make(to.rpartition("/")[0])
        self._move(self.path(DATA, path), to)

    def delete_old(self, snapshot: Snapshot, grace: float) -> tuple[str, ...]:
        """Delete removed files that no reader uses any more, after the grace period."""
        gone = tuple(path for path, since in snapshot.leaving.items() if since + grace <= time.time())
        for path in gone:
            with contextlib.suppress(FileNotFoundError):
                self._files.delete_file(self.path(DATA, path))
        return gone

    def discard(self, folder: str) -> None:
        """Remove a folder of `staging`."""
        path = self.path(STAGING, folder)
        if self._info(path).type == fs.FileType.Directory:
            self._files.delete_dir(path)

    # Inside.

    def _info(self, path: str) -> fs.FileInfo:
        return self._files.get_file_info(path)

    def _list(self, path: str, *, recursive: bool = False) -> Sequence[fs.FileInfo]:
        selector = fs.FileSelector(path, recursive=recursive, allow_not_found=True)
        found: Sequence[fs.FileInfo] = self._files.get_file_info(selector)
        return found

    def _make(self, path: str) -> None:
        try:
            self._files.create_dir(path, recursive=True)
        except OSError as error:
            raise LakeError(f"{path} can't be made: {error}") from error

    def _put_new(self, path: str, content: bytes) -> None:
        if not self.local:
            if self._info(path).type != fs.FileType.NotFound:
                raise self._taken(path)
            self._put(path, content)
            return
        new = Path(path).with_name(f".{Path(path).name}.{self.token}.new")
        _write(new, content)
        try:
            os.link(new, path)
        except FileExistsError:
            raise self._taken(path) from None
        finally:
            new.unlink()
        _sync(str(new.parent))

    def _taken(self, path: str) -> LakeError:
        return LakeError(f"{path} exists already: another process writes to the lake {self.name}")

    def _put(self, path: str, content: bytes) -> None:
        if self.local:
            new = Path(path).with_name(f".{Path(path).name}.{self.token}.new")
            _write(new, content)
            new.replace(path)
            return
        with self._files.open_output_stream(path) as out:
            out.write(content)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def _sync(path: str) -> None:
    """Make what was written to a file, or moved into a folder, last."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _bounds(metadata: pq.FileMetaData, column: str, path: str) -> tuple[Any, Any]:
    """The least and the greatest value that a column has, by the statistics of the file."""
    at = metadata.schema.names.index(column)
    found = [metadata.row_group(number).column(at).statistics for number in range(metadata.num_row_groups)]
    if not found or any(one is None or not one.has_min_max for one in found):
        raise LakeError(f"{path} does not say which values of {column!r} it has")
    return min(one.min for one in found), max(one.max for one in found)


def _microseconds(bounds: tuple[datetime, datetime]) -> tuple[int, int]:
    first, last = ((one - _EPOCH) // timedelta(microseconds=1) for one in bounds)
    return first, last
