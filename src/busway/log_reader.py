"""Reads a broker's data folder without a broker: its owner, its streams and their logs. The CLI and Spark call it.

A broker may use the folder at the same time. These functions write nothing and lock nothing.
"""

import json
from pathlib import Path

from busway._core import Log
from busway.errors import DataFailed


def owner(folder: Path) -> str:
    """Return the guid of the broker that owns the folder."""
    file = folder / "broker.json"
    try:
        guid = json.loads(file.read_bytes())["guid"]
    except FileNotFoundError:
        raise DataFailed(f"{folder} is not a broker's data folder: {file.name} is missing") from None
    except OSError as error:
        raise DataFailed(f"{file} can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataFailed(f"{file} is damaged: it contains no guid") from error
    return str(guid)


def streams(folder: Path) -> dict[str, Path]:
    """Return the log folders of all streams on disk, by the stream's name."""
    try:
        logs = {path.name: path / "log" for path in (folder / "streams").iterdir() if not path.name.startswith(".")}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DataFailed(f"the streams in {folder} can't be read: {error.strerror}") from error
    return {name: log for name, log in sorted(logs.items()) if log.is_dir()}


def view(folder: Path, stream: str) -> Log:
    """Open a read-only view of the records that a stream has now."""
    log = folder / "streams" / stream / "log"
    if not log.is_dir():
        raise DataFailed(f"{folder} has no stream {stream!r} on disk; it has {', '.join(streams(folder)) or 'none'}")
    return Log.view(log, name=stream)
